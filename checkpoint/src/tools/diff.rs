//! Comparison of the tensors and scalars of two checkpoints.

use std::collections::{BTreeMap, BTreeSet};

use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use tinderbox_deferred::Observer;

use super::ToolError;
use crate::{LoadError, Role, SavedTensors, Scalar, StoredDType, TensorEntry};

/// All tensors and scalars that differ between two checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Diff {
    /// The tensors that differ, by role and name; a tensor that differs in two ways has two entries.
    pub tensors: Vec<TensorDifference>,
    /// The scalars that differ, by name.
    pub scalars: Vec<ScalarDifference>,
    /// Number of tensors whose bits were compared and are equal.
    pub equal_tensors: usize,
    /// Number of scalars that are equal.
    pub equal_scalars: usize,
}

impl Diff {
    /// Returns whether there are no differences.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty() && self.scalars.is_empty()
    }
}

/// A tensor that differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorDifference {
    /// The role of the tensor.
    pub role: Role,
    /// The name in the first checkpoint, or in the second if it is only there.
    pub name: String,
    /// The difference.
    pub difference: Difference,
}

/// A difference between two tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// The tensor is missing from the second checkpoint.
    OnlyFirst,
    /// The tensor is missing from the first checkpoint.
    OnlySecond,
    /// The dtype or shape differs; the values are not compared.
    Form {
        /// Dtype in the first checkpoint.
        first_dtype: StoredDType,
        /// Shape in the first checkpoint.
        first_shape: Vec<u64>,
        /// Dtype in the second checkpoint.
        second_dtype: StoredDType,
        /// Shape in the second checkpoint.
        second_shape: Vec<u64>,
    },
    /// The names differ: a weight is tied in one checkpoint and not in the other.
    Names {
        /// All names in the first checkpoint, sorted.
        first: Vec<String>,
        /// All names in the second checkpoint, sorted.
        second: Vec<String>,
    },
    /// The bits of elements differ.
    Values(ValueDifference),
}

/// The difference between the elements of two tensors.
///
/// Elements differ if their bits do: a `NaN` equals a `NaN` with the same bits, and `0.0` differs from
/// `-0.0`, with distance 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ValueDifference {
    /// Number of elements.
    pub elements: u64,
    /// Number of elements that differ.
    pub differing: u64,
    /// Number of differing elements that are infinite or NaN in one of the checkpoints; they have no distance.
    pub not_finite: u64,
    /// The maximum of `|a - b|` over the other differing elements, at most `f64::MAX`. Booleans count as 0 and 1.
    pub max_absolute: Option<f64>,
    /// The maximum of `|a - b| / max(|a|, |b|)` over the other differing elements, from 0 to 2.
    pub max_relative: Option<f64>,
}

/// A scalar that differs in type or bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalarDifference {
    /// Its name.
    pub name: String,
    /// The value in the first checkpoint.
    pub first: Option<Scalar>,
    /// The value in the second checkpoint.
    pub second: Option<Scalar>,
}

/// Compares the tensors and scalars of two checkpoints by name, including tied names. Does not compare the division into
/// chunks, step, seed, data position, metadata and plan. Accepts [`Pretrained`](crate::Pretrained) weights as well, which have
/// no scalars.
///
/// Time: one pass over the tensors that have the same dtype and shape in both. Memory: two pieces of 8 MiB.
///
/// # Errors
///
/// Returns an error if a block of either checkpoint is damaged.
pub fn diff(
    first: &impl AsRef<SavedTensors>,
    second: &impl AsRef<SavedTensors>,
    progress: &dyn Observer,
) -> Result<Diff, ToolError> {
    let (first, second) = (first.as_ref(), second.as_ref());
    let mut found = Diff::default();
    let mut pairs = Vec::new();
    let differs = |role, name: &str, difference| TensorDifference {
        role,
        name: name.to_owned(),
        difference,
    };
    for role in [Role::Model, Role::State] {
        let both = first.tensors(role).chain(second.tensors(role));
        let names: BTreeSet<&str> = both.map(|tensor| &*tensor.name).collect();
        // A tied weight may be stored under any of its names.
        let mut paired = BTreeSet::new();
        for name in names {
            let difference = match (first.tensor(role, name), second.tensor(role, name)) {
                (Some(a), Some(b)) => {
                    if paired.insert((&a.name, &b.name)) {
                        pairs.push((a, b));
                    }
                    continue;
                }
                (_, None) => Difference::OnlyFirst,
                (None, _) => Difference::OnlySecond,
            };
            found.tensors.push(differs(role, name, difference));
        }
    }
    let same_form = pairs.iter().filter(|(a, b)| form(a) == form(b));
    let bytes = same_form.map(|(a, b)| a.bytes() + b.bytes()).sum();
    progress.begin(pairs.len(), bytes);
    for (a, b) in pairs {
        let differences = compare((first, a), (second, b), progress)?;
        found.equal_tensors += usize::from(differences.is_empty());
        let of_pair = differences.into_iter();
        let of_pair = of_pair.map(|difference| differs(a.role, &a.name, difference));
        found.tensors.extend(of_pair);
    }
    progress.end();
    // Stable, so the differences of one tensor keep their order.
    let tensors = &mut found.tensors;
    tensors.sort_by(|a, b| (a.role, &a.name).cmp(&(b.role, &b.name)));
    let none = BTreeMap::new();
    let [first, second] = [first, second].map(|of| of.scalars().unwrap_or(&none));
    let names: BTreeSet<&String> = first.keys().chain(second.keys()).collect();
    for name in names {
        match (first.get(name).copied(), second.get(name).copied()) {
            (a, b) if a == b => found.equal_scalars += 1,
            (first, second) => found.scalars.push(ScalarDifference {
                name: name.clone(),
                first,
                second,
            }),
        }
    }
    Ok(found)
}

fn form(tensor: &TensorEntry) -> (StoredDType, &[u64]) {
    (tensor.dtype, &tensor.shape)
}

/// Returns all differences of a tensor.
fn compare(
    (first, a): (&SavedTensors, &TensorEntry),
    (second, b): (&SavedTensors, &TensorEntry),
    progress: &dyn Observer,
) -> Result<Vec<Difference>, LoadError> {
    let mut differences = Vec::new();
    let [of_a, of_b] = [a, b].map(|tensor| tensor.names().collect::<BTreeSet<_>>());
    if of_a != of_b {
        let owned = |names: BTreeSet<&String>| names.into_iter().cloned().collect();
        let [first, second] = [of_a, of_b].map(owned);
        differences.push(Difference::Names { first, second });
    }
    if form(a) != form(b) {
        differences.push(Difference::Form {
            first_dtype: a.dtype,
            first_shape: a.shape.clone(),
            second_dtype: b.dtype,
            second_shape: b.shape.clone(),
        });
        return Ok(differences);
    }
    let mut values = ValueDifference::default();
    let region = a.region();
    let of_second = second.read_in_pieces(b, &region, b.dtype);
    for (of_first, of_second) in first.read_in_pieces(a, &region, a.dtype).zip(of_second) {
        let (of_first, of_second) = (of_first?, of_second?);
        values.elements += of_first.num_elements() as u64;
        let (of_first, of_second) = (of_first.as_bytes(), of_second.as_bytes());
        values.add(a.dtype, of_first, of_second);
        progress.advanced((of_first.len() + of_second.len()) as u64);
    }
    if values.differing > 0 {
        differences.push(Difference::Values(values));
    }
    Ok(differences)
}

impl ValueDifference {
    /// Adds the differences between two pieces of equal length.
    fn add(&mut self, dtype: StoredDType, first: &[u8], second: &[u8]) {
        use StoredDType as D;
        // Equal bytes, the common case, are skipped at memory speed.
        if first == second {
            return;
        }
        macro_rules! each {
            ($type:ty, $distance:expr) => {{
                let (first, _) = first.as_chunks::<{ size_of::<$type>() }>();
                let (second, _) = second.as_chunks::<{ size_of::<$type>() }>();
                for (a, b) in first.iter().zip(second).filter(|(a, b)| a != b) {
                    let [a, b] = [a, b].map(|bytes| <$type>::from_le_bytes(*bytes).into());
                    self.count($distance(a, b));
                }
            }};
        }
        match dtype {
            D::Bool | D::U8 => each!(u8, integers),
            D::I8 => each!(i8, integers),
            D::U16 => each!(u16, integers),
            D::I16 => each!(i16, integers),
            D::U32 => each!(u32, integers),
            D::I32 => each!(i32, integers),
            D::U64 => each!(u64, integers),
            D::I64 => each!(i64, integers),
            D::F16 => each!(f16, floats),
            D::BF16 => each!(bf16, floats),
            D::F32 => each!(f32, floats),
            D::F64 => each!(f64, floats),
        }
    }

    /// Counts an element that differs, with its absolute and relative distance.
    fn count(&mut self, distance: Option<(f64, f64)>) {
        self.differing += 1;
        let Some((absolute, relative)) = distance else {
            self.not_finite += 1;
            return;
        };
        let larger = |most: Option<f64>, now: f64| Some(most.map_or(now, |most| most.max(now)));
        self.max_absolute = larger(self.max_absolute, absolute);
        self.max_relative = larger(self.max_relative, relative);
    }
}

fn floats(a: f64, b: f64) -> Option<(f64, f64)> {
    if !(a.is_finite() && b.is_finite()) {
        return None;
    }
    let absolute = (a - b).abs().min(f64::MAX);
    Some((absolute, relative(absolute, a.abs().max(b.abs()))))
}

fn integers(a: i128, b: i128) -> Option<(f64, f64)> {
    let absolute = a.abs_diff(b) as f64;
    let scale = a.unsigned_abs().max(b.unsigned_abs()) as f64;
    Some((absolute, relative(absolute, scale)))
}

/// Returns the relative distance; 0 for `0.0` and `-0.0`.
fn relative(absolute: f64, scale: f64) -> f64 {
    if scale == 0.0 { 0.0 } else { absolute / scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const N: usize, T: Copy>(
        dtype: StoredDType,
        bytes: fn(T) -> [u8; N],
        pairs: &[(T, T)],
        expected: (u64, u64, Option<f64>, Option<f64>),
    ) {
        let [first, second] = [0, 1].map(|side| {
            let values = pairs.iter().map(|(a, b)| [*a, *b][side]);
            values.flat_map(bytes).collect::<Vec<u8>>()
        });
        let mut found = ValueDifference::default();
        found.add(dtype, &first, &second);
        let found = (
            found.differing,
            found.not_finite,
            found.max_absolute,
            found.max_relative,
        );
        assert_eq!(found, expected, "{dtype}");
    }

    #[test]
    fn distances() {
        use StoredDType as D;
        let f = f32::to_le_bytes;
        check(D::F32, f, &[(1.0, 1.0)], (0, 0, None, None));
        check(
            D::F32,
            f,
            &[(1.0, 1.0), (2.0, 1.0), (-8.0, -9.0)],
            (2, 0, Some(1.0), Some(0.5)),
        );
        check(D::F32, f, &[(1.0, -1.0)], (1, 0, Some(2.0), Some(2.0)));
        check(D::F32, f, &[(0.0, -0.0)], (1, 0, Some(0.0), Some(0.0)));
        let nan = f32::NAN;
        let other = f32::from_bits(nan.to_bits() ^ 1);
        check(D::F32, f, &[(nan, nan)], (0, 0, None, None));
        check(D::F32, f, &[(nan, other), (nan, 1.0)], (2, 2, None, None));
        let infinity = f32::INFINITY;
        check(D::F32, f, &[(infinity, infinity)], (0, 0, None, None));
        check(
            D::F32,
            f,
            &[(infinity, -infinity), (4.0, 3.0)],
            (2, 1, Some(1.0), Some(0.25)),
        );
        let huge = (1, 0, Some(f64::MAX), Some(1.0));
        check(D::F64, f64::to_le_bytes, &[(f64::MAX, f64::MIN)], huge);
        let half = |x: f32| bf16::from_f32(x).to_le_bytes();
        check(D::BF16, half, &[(2.0, 1.5)], (1, 0, Some(0.5), Some(0.25)));
        let half = |x: f32| f16::from_f32(x).to_le_bytes();
        check(D::F16, half, &[(2.0, 1.5)], (1, 0, Some(0.5), Some(0.25)));
        let far = (1, 0, Some(2f64.powi(64)), Some(2.0));
        check(D::I64, i64::to_le_bytes, &[(i64::MIN, i64::MAX)], far);
        let far = (1, 0, Some(2f64.powi(64)), Some(1.0));
        check(D::U64, u64::to_le_bytes, &[(0, u64::MAX)], far);
        let flipped = (1, 0, Some(1.0), Some(1.0));
        check(D::Bool, u8::to_le_bytes, &[(1, 1), (0, 1)], flipped);
    }
}
