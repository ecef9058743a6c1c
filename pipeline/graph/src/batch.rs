//! The inputs of a forward: any structure of tensors.

use std::fmt;

use burn::tensor::{DType, Device, Tensor, kind::Basic};
use serde::{Deserialize, Serialize};
use tinderbox_fake::{DynTensor, FakeError, Region};

use crate::BatchError;

/// A structure of tensors: a tensor, a tuple, an `Option`, a `Vec`, an array, or a struct of batches that
/// [derives](derive@crate::Batch) it.
///
/// The first dimension of every tensor is the samples: a batch is split along it into micro-batches.
/// Wrap a tensor that belongs to all samples in [`Whole`], and one whose samples are another dimension in
/// [`Along`], or give its field the attribute. Wrap tensors that a forward computes for its next call, such as the
/// caches of an attention, in [`Carried`].
///
/// ```
/// # extern crate tinderbox_graph as tinderbox;
/// use burn::tensor::{Bool, Int, Tensor};
/// use tinderbox::Batch;
///
/// #[derive(Clone, Debug, Batch)]
/// struct Sentences {
///     /// `[sentences, length]`
///     tokens: Tensor<2, Int>,
///     mask: Option<Tensor<2, Bool>>,
///     /// `[length, length]`, the same for all.
///     #[batch(whole)]
///     bias: Tensor<2>,
///     /// A part of the forward's program.
///     #[batch(constant)]
///     pad_token: usize,
///     /// For a metric.
///     #[batch(skip)]
///     texts: Vec<String>,
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a batch",
    note = "a batch is a tensor, a tuple, `Option`, `Vec` or array of batches, or a struct with \
            `#[derive(Batch)]`; a field of another type needs `#[batch(skip)]` or `#[batch(constant)]`"
)]
pub trait Batch: Clone + Send + Sync + 'static {
    /// Replaces every tensor, always in the same order.
    fn map_tensors(self, mapper: &mut BatchMapper<'_>) -> Self;
}

/// The division of a tensor among micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Division {
    /// Split along the dimension of the samples, which is the first unless [`Along`] is another.
    Samples {
        /// The dimension.
        axis: usize,
    },
    /// Not split. Every micro-batch has the whole tensor.
    Whole,
}

/// The name of a tensor of a batch, and how it is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafName {
    /// Field names and indices joined by dots; empty for a single tensor.
    pub name: String,
    /// The division among micro-batches.
    pub division: Division,
    /// Its name within the [`Carried`] that contains it; `None` for a tensor that is not carried.
    pub carried: Option<String>,
}

/// Visits the tensors of a batch.
#[expect(missing_debug_implementations, reason = "holds a closure")]
pub struct BatchMapper<'a> {
    path: Vec<String>,
    division: Division,
    /// The number of names outside of the carried part.
    carried_from: Option<usize>,
    /// The parts without tensors, and constants. The forward depends on them as on tensors.
    empty: Vec<String>,
    /// Whether skipped fields keep their values, or get their defaults.
    keeps_skipped: bool,
    has_skipped: bool,
    change: &'a mut dyn FnMut(&LeafName, DynTensor) -> DynTensor,
}

impl<'a> BatchMapper<'a> {
    pub fn new(change: &'a mut dyn FnMut(&LeafName, DynTensor) -> DynTensor) -> Self {
        Self {
            path: Vec::new(),
            division: Division::Samples { axis: 0 },
            carried_from: None,
            empty: Vec::new(),
            keeps_skipped: true,
            has_skipped: false,
            change,
        }
    }

    /// Visits a field or an element.
    pub fn field<B: Batch>(&mut self, name: impl ToString, value: B) -> B {
        self.path.push(name.to_string());
        let value = value.map_tensors(self);
        self.path.pop();
        value
    }

    /// Visits a field on which the forward may depend, and that has no tensors. Values whose `Debug` texts
    /// differ are recorded as different programs.
    pub fn constant<T: fmt::Debug>(&mut self, name: impl ToString, value: T) -> T {
        self.path.push(name.to_string());
        self.note_empty(&format!("{value:?}"));
        self.path.pop();
        value
    }

    /// Visits a field on which the forward does not depend. One of two recordings has its default value, so that
    /// a forward that depends on it is refused.
    pub fn skip<T: Default>(&mut self, value: T) -> T {
        self.has_skipped = true;
        match self.keeps_skipped {
            true => value,
            false => T::default(),
        }
    }

    /// Visits a part with this division.
    fn divided<B: Batch>(&mut self, division: Division, value: B) -> B {
        let outer = std::mem::replace(&mut self.division, division);
        let value = value.map_tensors(self);
        self.division = outer;
        value
    }

    fn note_empty(&mut self, what: &str) {
        self.empty.push(format!("{}:{what}", self.path.join(".")));
    }

    fn leaf<const D: usize, K: Basic>(&mut self, tensor: Tensor<D, K>) -> Tensor<D, K> {
        let name = LeafName {
            name: self.path.join("."),
            division: self.division,
            carried: self.carried_from.map(|from| self.path[from..].join(".")),
        };
        (self.change)(&name, tensor.into())
            .typed()
            .expect("a tensor is replaced by one of its rank and kind")
    }
}

impl<const D: usize, K: Basic + 'static> Batch for Tensor<D, K>
where
    Tensor<D, K>: Sync,
{
    fn map_tensors(self, mapper: &mut BatchMapper<'_>) -> Self {
        mapper.leaf(self)
    }
}

/// A part of a batch that belongs to all samples, such as an attention mask: it is not split.
#[derive(Clone, Debug)]
pub struct Whole<B>(pub B);

impl<B: Batch> Batch for Whole<B> {
    fn map_tensors(self, mapper: &mut BatchMapper<'_>) -> Self {
        Self(mapper.divided(Division::Whole, self.0))
    }
}

/// A part of a batch whose samples are the dimension `AXIS`, such as a sequence of steps of all samples, of shape
/// `[steps, samples, features]`.
#[derive(Clone, Debug)]
pub struct Along<const AXIS: usize, B>(pub B);

impl<const AXIS: usize, B: Batch> Batch for Along<AXIS, B> {
    fn map_tensors(self, mapper: &mut BatchMapper<'_>) -> Self {
        // A tensor of all samples belongs to all samples in every part.
        let along = match mapper.division {
            Division::Whole => Division::Whole,
            Division::Samples { .. } => Division::Samples { axis: AXIS },
        };
        Self(mapper.divided(along, self.0))
    }
}

/// A part of a batch whose values the forward computes for its next call, such as the caches of an attention. The forward
/// returns their new values with [`Outputs::carry`](crate::Outputs::carry).
///
/// `Pipeline::evaluate_carried` keeps them on the ranks from call to call, and reads the values of the batch in the first
/// call only. Elsewhere they are like other tensors of a batch.
#[derive(Clone, Debug)]
pub struct Carried<B>(pub B);

impl<B: Batch> Batch for Carried<B> {
    fn map_tensors(self, mapper: &mut BatchMapper<'_>) -> Self {
        let outer = mapper.carried_from;
        mapper.carried_from = outer.or(Some(mapper.path.len()));
        let inner = self.0.map_tensors(mapper);
        mapper.carried_from = outer;
        Self(inner)
    }
}

impl<B: Batch> Batch for Option<B> {
    fn map_tensors(self, mapper: &mut BatchMapper<'_>) -> Self {
        if self.is_none() {
            mapper.note_empty("None");
        }
        self.map(|value| value.map_tensors(mapper))
    }
}

impl<B: Batch> Batch for Vec<B> {
    fn map_tensors(self, mapper: &mut BatchMapper<'_>) -> Self {
        if self.is_empty() {
            mapper.note_empty("[]");
        }
        let values = self.into_iter().enumerate();
        let values = values.map(|(index, value)| mapper.field(index, value));
        values.collect()
    }
}

impl<B: Batch, const N: usize> Batch for [B; N] {
    fn map_tensors(self, mapper: &mut BatchMapper<'_>) -> Self {
        let mut index = 0;
        self.map(|value| {
            index += 1;
            mapper.field(index - 1, value)
        })
    }
}

macro_rules! tuple {
    ($($name:ident $index:tt),*) => {
        impl<$($name: Batch),*> Batch for ($($name,)*) {
            fn map_tensors(self, mapper: &mut BatchMapper<'_>) -> Self {
                ($(mapper.field($index, self.$index),)*)
            }
        }
    };
}

tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
tuple!(A 0, B 1, C 2, D 3, E 4);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5);

/// Name, shape and dtype of one tensor of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Leaf {
    /// Field names and indices joined by dots; empty for a single tensor.
    pub name: String,
    /// Size of each dimension.
    pub shape: Vec<usize>,
    /// The dtype.
    pub dtype: DType,
}

impl Leaf {
    /// Returns its bytes.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.size() as u64
    }
}

/// Returns every tensor of a batch with its name, and the names of its parts without tensors.
fn visit<B: Batch>(batch: &B) -> (Vec<(LeafName, DynTensor)>, Vec<String>) {
    let mut found = Vec::new();
    let mut note = |name: &LeafName, tensor: DynTensor| {
        found.push((name.clone(), tensor.clone()));
        tensor
    };
    let mut mapper = BatchMapper::new(&mut note);
    batch.clone().map_tensors(&mut mapper);
    let empty = mapper.empty;
    (found, empty)
}

/// Returns the batch with the defaults of its skipped fields; `None` if it has none.
pub fn without_skipped<B: Batch>(batch: &B) -> Option<B> {
    let mut keep = |_: &LeafName, tensor| tensor;
    let mut mapper = BatchMapper::new(&mut keep);
    mapper.keeps_skipped = false;
    let batch = batch.clone().map_tensors(&mut mapper);
    mapper.has_skipped.then_some(batch)
}

/// Returns every tensor of a batch with its name.
pub fn leaves<B: Batch>(batch: &B) -> Vec<(LeafName, DynTensor)> {
    visit(batch).0
}

/// The positions of the carried tensors of a batch, and their names within what is carried.
pub fn carried_names<B: Batch>(batch: &B) -> Vec<(usize, String)> {
    let leaves = leaves(batch).into_iter().enumerate();
    let carried = leaves.filter_map(|(position, (name, _))| Some((position, name.carried?)));
    carried.collect()
}

/// Returns name and type of every tensor of a batch, its parts without tensors, and the tensors without gradient tracking.
pub fn signature<B: Batch>(batch: &B) -> (Vec<Leaf>, Vec<String>, Vec<DynTensor>) {
    let (found, empty) = visit(batch);
    let found = found.into_iter().map(|(name, tensor)| {
        let leaf = Leaf {
            name: name.name,
            shape: tensor.shape().to_vec(),
            dtype: tensor.dtype(),
        };
        (leaf, tensor.without_autodiff())
    });
    let (leaves, tensors) = found.unzip();
    (leaves, empty, tensors)
}

/// Splits a batch into `count` micro-batches along the dimension of the samples, as a pipeline does, the larger
/// ones first. Returns each with its number of samples.
///
/// # Errors
///
/// When the tensors have different numbers of samples, or fewer than `count`; when one is fake.
pub fn split_batch<B: Batch>(batch: &B, count: usize) -> Result<Vec<(B, usize)>, BatchError> {
    split_samples(batch, samples_of(batch)?, count)
}

/// Splits a batch of this many samples into micro-batches.
pub fn split_samples<B: Batch>(
    batch: &B,
    samples: usize,
    count: usize,
) -> Result<Vec<(B, usize)>, BatchError> {
    if count == 0 || samples < count {
        return Err(BatchError::TooFewSamples {
            samples,
            micro_batches: count,
        });
    }
    if count == 1 {
        return Ok(vec![(batch.clone(), samples)]);
    }
    let mut start = 0;
    let parts = (0..count).map(|index| {
        let size = size_of_part(samples, count, index);
        let range = start as u64..(start + size) as u64;
        let part = map_samples(batch, |tensor, axis| {
            let part = Region::of_shape(&tensor.shape()).with_range(axis, range.clone());
            tensor.slice(&part)
        });
        start += size;
        (part, size)
    });
    Ok(parts.collect())
}

/// Returns the samples of one of `count` parts of a batch: the first ones have one more than the others.
pub fn size_of_part(samples: usize, count: usize, index: usize) -> usize {
    samples / count + usize::from(index < samples % count)
}

/// Returns a batch in which the tensors that have samples are replaced. `change` gets the dimension of the samples.
fn map_samples<B: Batch>(batch: &B, change: impl Fn(DynTensor, usize) -> DynTensor) -> B {
    let mut change = |name: &LeafName, tensor| match name.division {
        Division::Whole => tensor,
        Division::Samples { axis } => change(tensor, axis),
    };
    let mut mapper = BatchMapper::new(&mut change);
    batch.clone().map_tensors(&mut mapper)
}

/// Returns a batch with this number of samples: the first ones of a batch, or zeros if it has fewer. The values are not read.
pub fn with_samples<B: Batch>(batch: &B, samples: usize) -> B {
    map_samples(batch, |tensor, axis| {
        let mut shape = tensor.shape();
        if shape[axis] >= samples && !tensor.is_fake() {
            let part = Region::of_shape(&shape).with_range(axis, 0..samples as u64);
            return tensor.slice(&part);
        }
        let device = match tensor.is_fake() {
            true => Device::flex(),
            false => tensor.device(),
        };
        shape[axis] = samples;
        DynTensor::zeros(shape, tensor.dtype(), &device)
    })
}

/// The number of samples of a batch, at least 1.
pub fn samples_of<B: Batch>(batch: &B) -> Result<usize, BatchError> {
    let leaves = leaves(batch);
    if let Some((leaf, _)) = leaves.iter().find(|(_, tensor)| tensor.is_fake()) {
        let name = leaf.name.clone();
        return Err(BatchError::Fake { name });
    }
    samples_of_leaves(leaves)
}

/// The number of samples of a batch, at least 1. Only shapes are read, so its tensors may be fake.
pub fn samples_of_shapes<B: Batch>(batch: &B) -> Result<usize, BatchError> {
    samples_of_leaves(leaves(batch))
}

fn samples_of_leaves(leaves: Vec<(LeafName, DynTensor)>) -> Result<usize, BatchError> {
    let mut divided = leaves.into_iter().filter_map(|(leaf, tensor)| {
        let Division::Samples { axis } = leaf.division else {
            return None;
        };
        Some((leaf.name, tensor.shape().get(axis).copied().unwrap_or(0)))
    });
    let (first, expected) = divided.next().ok_or(BatchError::NoSamples)?;
    match divided.find(|(_, found)| *found != expected) {
        Some((name, found)) => Err(BatchError::SampleCount {
            first,
            expected,
            name,
            found,
        }),
        None if expected == 0 => Err(BatchError::Empty),
        None => Ok(expected),
    }
}

/// Returns the tensors of a batch in the order of a program's inputs, without gradient tracking.
pub fn batch_tensors<B: Batch>(batch: &B) -> Vec<DynTensor> {
    signature(batch).2
}

/// Returns a batch on another device, as leaves without gradients. Copies tensors that are on other
/// devices.
///
/// # Errors
///
/// When a tensor is fake, or can't be copied.
pub fn batch_on<B: Batch>(batch: &B, device: &Device) -> Result<B, FakeError> {
    let mut failed = None;
    let mut copy = |_: &LeafName, tensor: DynTensor| {
        let copied = tensor.clone().to_device(device);
        copied.unwrap_or_else(|error| {
            failed = Some(error);
            tensor
        })
    };
    let moved = batch.clone().map_tensors(&mut BatchMapper::new(&mut copy));
    failed.map_or(Ok(moved), Err)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Int, Tensor};

    use super::*;

    fn ids(rows: usize) -> Tensor<2, Int> {
        Tensor::<1, Int>::arange(0..rows as i64 * 2, &Device::flex()).reshape([rows, 2])
    }

    #[test]
    fn names_and_order_follow_the_structure() {
        let batch = (
            ids(4),
            Some(vec![ids(4), ids(4)]),
            Whole(ids(1)),
            None::<Tensor<1>>,
            Carried((vec![ids(4)], Whole(ids(1)))),
        );
        let names: Vec<String> = leaves(&batch)
            .into_iter()
            .map(|(name, _)| {
                let text = match name.division {
                    Division::Samples { axis } => format!("{} along {axis}", name.name),
                    Division::Whole => format!("{} whole", name.name),
                };
                match name.carried {
                    Some(inner) => format!("{text}, carried {inner}"),
                    None => text,
                }
            })
            .collect();
        assert_eq!(
            names,
            [
                "0 along 0",
                "1.0 along 0",
                "1.1 along 0",
                "2 whole",
                "4.0.0 along 0, carried 0.0",
                "4.1 whole, carried 1"
            ]
        );
    }

    #[test]
    fn splits_unevenly_and_keeps_every_sample() {
        let parts = split_batch(&(ids(7), Whole(ids(1))), 3).unwrap();
        assert_eq!(parts.iter().map(|p| p.1).collect::<Vec<_>>(), [3, 2, 2]);
        let rows: Vec<i32> = parts
            .iter()
            .flat_map(|p| p.0.0.clone().into_data().try_to_vec::<i32>().unwrap())
            .collect();
        assert_eq!(rows, (0..14).collect::<Vec<i32>>());
        assert!(parts.iter().all(|p| p.0.1.0.dims() == [1, 2]));
    }

    /// Names, dtypes and shapes are the same as in the parts of a larger batch.
    #[test]
    fn a_batch_may_have_another_number_of_samples() {
        let batch = |samples: usize| {
            let mask = Tensor::<2>::ones([samples, 1], &Device::flex());
            let along = Tensor::<2>::ones([3, samples], &Device::flex());
            (
                ids(samples),
                mask.bool(),
                Along::<1, _>(along),
                Whole(ids(1)),
            )
        };
        for (from, to) in [(4, 1), (4, 2), (2, 7), (3, 3)] {
            let (found, found_empty, _) = signature(&with_samples(&batch(from), to));
            let (expected, expected_empty, _) = signature(&batch(to));
            assert_eq!((found, found_empty), (expected, expected_empty));
        }
    }

    #[test]
    fn refuses_batches_that_cannot_be_split() {
        let text = |result: Result<Vec<(_, usize)>, BatchError>| result.unwrap_err().to_string();
        assert_eq!(
            text(split_batch(&(ids(4), ids(3)), 2)),
            "tensor `0` of the batch has 4 samples and `1` has 3: wrap a tensor that belongs to \
             all samples in `Whole`, and one whose samples are not the first dimension in `Along`"
        );
        assert_eq!(
            split_batch(&ids(2), 3).unwrap_err().to_string(),
            "a batch of 2 samples can't be split into 3 micro-batches: lower the number of \
             micro-batches"
        );
        assert!(matches!(
            split_batch(&Whole(ids(2)), 1),
            Err(BatchError::NoSamples)
        ));
        let recorded = tinderbox_fake::record(&Default::default(), |device| {
            Tensor::<2>::zeros([4, 2], device)
        });
        assert_eq!(
            split_batch(&(ids(4), recorded.unwrap().0), 2)
                .unwrap_err()
                .to_string(),
            "tensor `1` of the batch is fake: it has a shape and no data, because it was created under recording"
        );
    }
}
