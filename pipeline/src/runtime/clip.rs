//! Clipping of gradients before the update.

use std::ops::Range;

use burn::optim::grad_clipping::GradientClippingConfig;
use burn::tensor::{DType, Device, Tensor, TensorData};
use tinderbox_deferred::with_ordered_sums;
use tinderbox_fake::{DynTensor, FakeError};

use crate::ActionResult;

/// The clipping of gradients before the update.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Clipping {
    /// Clips each gradient by itself, as Burn's optimizers do.
    Each(GradientClippingConfig),
    /// Scales all gradients by one factor, so that the norm of all of them together is at most this
    /// value, which must be positive.
    ///
    /// Every rank then waits for all others before its update. The squares of a gradient are summed on its device in parts
    /// of at most 2^20 elements: whole rows, or a part of a longer row. The sums are in f32, or in f64 for gradients in
    /// f64. They are added in f64, gradient by gradient in the order of the parameter table, so that the norm has the same
    /// bits under every plan, schedule and number of replicas. The factor is `max / (norm + 1e-6)` if that is less than
    /// one, as in PyTorch's `clip_grad_norm_`.
    GlobalNorm(f64),
}

/// The number of elements in one sum of squares. Burn's CPU backend sums this many in a fixed order;
/// from 4 Mi elements on, the order depends on the threads.
pub(crate) const SUM_ELEMENTS: usize = 1 << 20;

/// Returns the number of whole rows that one sum of squares covers; 1 for a row that needs several sums.
pub(crate) fn rows_per_sum(shape: &[u64]) -> u64 {
    let row: u64 = shape.iter().skip(1).product();
    (SUM_ELEMENTS as u64 / row.max(1)).max(1)
}

/// Returns the number of sums of a gradient's squares.
pub(crate) fn sums_of(shape: &[u64]) -> usize {
    parts(shape).count()
}

/// The elements of each sum.
fn parts(shape: &[u64]) -> impl Iterator<Item = Range<usize>> + use<> {
    let elements = shape.iter().product::<u64>() as usize;
    let row = shape.iter().skip(1).product::<u64>() as usize;
    let length = rows_per_sum(shape) as usize * row.max(1);
    (0..elements).step_by(length).flat_map(move |start| {
        let end = elements.min(start + length);
        let starts = (start..end).step_by(SUM_ELEMENTS);
        starts.map(move |start| start..end.min(start + SUM_ELEMENTS))
    })
}

/// Keeps the factor finite.
const EPSILON: f64 = 1e-6;

/// Wraps a float tensor in a type with a fixed rank, for operations that do not depend on the rank.
pub(crate) fn any_rank(tensor: DynTensor) -> Tensor<1> {
    Tensor::from_dispatch(tensor.into())
}

/// The squares of the gradients of a stage, summed in parts on the devices of the gradients.
#[derive(Debug)]
pub(crate) struct SquareSums {
    /// The sums, in f64 if any gradient is in f64, else in f32; `None` without gradients.
    sums: Option<DynTensor>,
    /// The number of sums of each gradient.
    counts: Vec<usize>,
}

impl SquareSums {
    /// Sums the squares of gradients. Cost: a pass over the gradients. Waits for no device.
    pub(crate) fn of(gradients: &[Option<DynTensor>]) -> Self {
        let mut there = gradients.iter().flatten();
        let widest = match there.any(|gradient| gradient.dtype() == DType::F64) {
            true => DType::F64,
            false => DType::F32,
        };
        let mut counts = Vec::with_capacity(gradients.len());
        let mut sums = Vec::new();
        for gradient in gradients {
            let before = sums.len();
            let of_gradient = gradient.iter().flat_map(|gradient| {
                partial_sums(gradient.clone()).map(|sum| any_rank(sum.cast_float(widest)))
            });
            sums.extend(of_gradient);
            counts.push(sums.len() - before);
        }
        let sums = (!sums.is_empty()).then(|| Tensor::cat(sums, 0).into());
        Self { sums, counts }
    }

    /// Returns the sums of each gradient; a missing gradient has none. `read` reads all sums at once and waits for the
    /// device.
    pub(crate) fn read(
        self,
        read: impl FnOnce(DynTensor) -> Result<TensorData, FakeError>,
    ) -> Result<Vec<Vec<f64>>, FakeError> {
        let data = self.sums.map(read).transpose()?;
        let mut sums = data.iter().flat_map(|data| data.iter::<f64>());
        let of_each = self.counts.into_iter();
        let of_each = of_each.map(|count| sums.by_ref().take(count).collect());
        Ok(of_each.collect())
    }
}

/// The sums of the squares of a gradient, on its device.
fn partial_sums(gradient: DynTensor) -> impl Iterator<Item = DynTensor> {
    let elements = gradient.shape().num_elements();
    let shape: Vec<u64> = gradient.shape().iter().map(|size| *size as u64).collect();
    let summed = match gradient.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let flat = any_rank(gradient).reshape([elements]);
    parts(&shape).map(move |part| {
        let part = DynTensor::from(flat.clone().slice(part)).cast_float(summed);
        any_rank(part).square().sum().into()
    })
}

/// The change of all gradients before the update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum GradientChange {
    /// No change.
    Keep,
    /// Multiplies all gradients by this factor.
    Scale(f64),
    /// The gradients are not finite: skips the update.
    Skip,
}

impl GradientChange {
    /// The change for gradients with this norm, after division by the loss scale.
    pub(crate) fn of(norm: f64, max: Option<f64>, loss_scale: Option<f64>) -> Self {
        if loss_scale.is_some() && !norm.is_finite() {
            return Self::Skip;
        }
        // A NaN norm makes all gradients NaN, as in PyTorch, so that the error is visible.
        let clip = max.map(|max| max / (norm + EPSILON));
        let clip = clip.filter(|factor| factor.is_nan() || *factor < 1.0);
        match (clip, loss_scale) {
            (None, None) => Self::Keep,
            (clip, scale) => Self::Scale(clip.unwrap_or(1.0) / scale.unwrap_or(1.0)),
        }
    }
}

/// Multiplies a gradient by a factor.
pub(crate) fn scaled(gradient: DynTensor, factor: f64) -> DynTensor {
    match gradient.dtype() {
        DType::F64 => any_rank(gradient).mul_scalar(factor).into(),
        _ => any_rank(gradient).mul_scalar(factor as f32).into(),
    }
}

/// Clips a gradient by itself.
pub(crate) fn each(clip: &GradientClippingConfig, gradient: DynTensor) -> ActionResult<DynTensor> {
    let clipping = clip.init();
    let (device, elements) = (gradient.device(), gradient.shape().num_elements());
    macro_rules! of_rank {
        ($($rank:literal)*) => {
            match gradient.shape().num_dims() {
                $($rank => clipping.clip_gradient(gradient.typed::<$rank, burn::tensor::Float>()?).into(),)*
                _ => unreachable!("no stage holds a parameter with more dimensions"),
            }
        };
    }
    with_ordered_sums(&device, elements, || Ok(of_rank!(1 2 3 4 5 6 7 8)))
}

/// The norms that a stage sends to all ranks, or a replica to the other replicas, before the update.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Norms {
    /// The square of the norm of each gradient; in a message of a replica, the sums of squares of its pieces.
    pub(crate) squares: Vec<f64>,
    /// Whether the losses that the rank computes are finite; true if this is not checked.
    pub(crate) loss_is_finite: bool,
}

impl Norms {
    /// Converts the norms to a message, on the host for any devices of the ranks.
    pub(crate) fn to_message(&self) -> DynTensor {
        let loss = if self.loss_is_finite { 0.0 } else { f64::NAN };
        let values: Vec<f64> = self.squares.iter().copied().chain([loss]).collect();
        let length = values.len();
        DynTensor::from_data(TensorData::new(values, [length]), &Device::flex())
    }

    pub(crate) fn from_message(data: &TensorData) -> Self {
        let mut squares: Vec<f64> = data.iter::<f64>().collect();
        let loss_is_finite = squares.pop().is_some_and(f64::is_finite);
        Self {
            squares,
            loss_is_finite,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(elements: usize) -> Vec<f32> {
        (0..elements)
            .map(|k| ((k % 1013) as f32 * 0.37).sin() * 1e-2)
            .collect()
    }

    fn gradient(values: Vec<f32>, shape: Vec<usize>, dtype: DType) -> Option<DynTensor> {
        let data = TensorData::new(values, shape).convert_dtype(dtype);
        Some(DynTensor::from_data(data, &Device::flex()))
    }

    /// Burn's sum of the squares of each part, read one by one.
    fn one_by_one(values: &[f32]) -> f64 {
        let parts = values.chunks(SUM_ELEMENTS).map(|part| {
            let part = Tensor::<1>::from_floats(part, &Device::flex());
            f64::from(part.square().sum().into_scalar::<f32>())
        });
        parts.sum()
    }

    #[test]
    fn all_norms_are_read_at_once_with_the_bits_of_single_reads() {
        let long = wave(2 * SUM_ELEMENTS + 77);
        let short = wave(12);
        let gradients = [
            gradient(short.clone(), vec![3, 4], DType::F32),
            None,
            gradient(long.clone(), vec![long.len()], DType::F32),
            gradient(Vec::new(), vec![0, 5], DType::F32),
        ];
        let mut reads = 0;
        let sums = SquareSums::of(&gradients).read(|sums| {
            reads += 1;
            sums.to_data()
        });
        let norms = norms(&sums.unwrap());
        let expected = vec![one_by_one(&short), 0.0, one_by_one(&long), 0.0];
        assert_eq!(norms, expected);
        assert_eq!(reads, 1);
        let none = SquareSums::of(&[None, None]).read(|_| unreachable!("there is nothing to read"));
        assert_eq!(none.unwrap(), vec![Vec::<f64>::new(); 2]);
    }

    fn norms(sums: &[Vec<f64>]) -> Vec<f64> {
        sums.iter().map(|sums| sums.iter().sum()).collect()
    }

    /// The parts of a tensor that is cut between two sums are the parts of the whole.
    #[test]
    fn sums_of_rows_equal_the_sums_of_the_whole() {
        let mi = SUM_ELEMENTS as u64;
        for shape in [
            vec![mi * 3 + 5],
            vec![4000, 1000],
            vec![3, 2 * mi + 7],
            vec![5, 0],
            vec![0, 5],
        ] {
            let step = rows_per_sum(&shape);
            let whole: Vec<usize> = parts(&shape).map(|part| part.len()).collect();
            assert_eq!(whole.len(), sums_of(&shape));
            let of_rows = (0..shape[0]).step_by(step as usize).flat_map(|row| {
                let mut piece = shape.clone();
                piece[0] = step.min(shape[0] - row);
                parts(&piece).map(|part| part.len()).collect::<Vec<_>>()
            });
            assert_eq!(whole, of_rows.collect::<Vec<_>>(), "{shape:?}");
            assert!(whole.iter().all(|length| *length <= SUM_ELEMENTS));
        }
    }

    /// Neither 0.1 nor its square is exact in f32.
    #[test]
    fn gradients_in_f64_keep_their_digits() {
        let wide = DynTensor::from_data(TensorData::new(vec![0.1_f64, 0.2], [2]), &Device::flex());
        let gradients = [Some(wide.clone()), gradient(wave(5), vec![5], DType::F32)];
        let sums = SquareSums::of(&gradients).read(|sums| sums.to_data());
        assert_eq!(
            norms(&sums.unwrap()),
            [0.1 * 0.1 + 0.2 * 0.2, one_by_one(&wave(5))]
        );
        let third = scaled(wide, 1.0 / 3.0).to_data().unwrap();
        let expected = [0.1, 0.2].map(|x: f64| x * (1.0 / 3.0));
        assert_eq!(third.iter::<f64>().collect::<Vec<_>>(), expected);
    }
}
