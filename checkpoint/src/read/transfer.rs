//! Conversion of file bytes to tensor bytes.

use burn::tensor::{BoolStore, DType};
use half::{bf16, f16};

use crate::StoredDType;

/// The conversion from file elements to tensor elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    /// No conversion; contains the size of an element in bytes.
    Same(usize),
    /// The conversion of booleans, which are 0 or 1 in a file, to one of Burn's representations.
    Bool(BoolStore),
    /// The conversion of one float type to another, rounding to nearest, ties to even.
    Float(StoredDType, StoredDType),
}

/// A value that the wanted type does not have.
#[derive(Debug)]
pub(super) enum InvalidValue {
    /// A boolean that is neither 0 nor 1, which would be undefined behaviour as a `bool`.
    Boolean,
    /// A finite number that would become infinite.
    Overflow(f64),
}

impl Transfer {
    /// Returns the conversion from a stored type to a Burn dtype; `None` if there is none.
    pub(super) fn between(from: StoredDType, to: DType) -> Option<Self> {
        let stored = StoredDType::of(to)?;
        match to {
            DType::Bool(store) if from == StoredDType::Bool => Some(Self::Bool(store)),
            _ if stored == from => Some(Self::Same(to.size())),
            _ if is_float(from) && is_float(stored) => Some(Self::Float(from, stored)),
            _ => None,
        }
    }

    /// Returns whether the bytes are the same in file and tensor, so that they can be read directly.
    pub(super) fn is_copy(self) -> bool {
        matches!(self, Self::Same(_))
    }

    /// Converts elements.
    pub(super) fn copy(self, from: &[u8], to: &mut [u8]) -> Result<(), InvalidValue> {
        match self {
            Self::Same(_) => to.copy_from_slice(from),
            Self::Bool(_) if from.iter().any(|b| *b > 1) => return Err(InvalidValue::Boolean),
            Self::Bool(_) => self.each(Copy { from, to }),
            Self::Float(from_type, to_type) => {
                let copy = Copy { from, to: &mut *to };
                self.each(copy);
                if let Some(value) = overflow(from_type, to_type, from, to) {
                    return Err(InvalidValue::Overflow(value));
                }
            }
        }
        Ok(())
    }

    /// Checks that elements can be converted.
    pub(super) fn check(self, from: &[u8]) -> Result<(), InvalidValue> {
        /// Number of elements that are converted at a time.
        const SOME: usize = 256;
        match self {
            Self::Bool(_) if from.iter().any(|b| *b > 1) => Err(InvalidValue::Boolean),
            Self::Float(from_type, to_type) if is_narrower(from_type, to_type) => {
                let [stored, wide] = [from_type, to_type].map(|of| of.size_bytes() as usize);
                let mut to = [0; SOME * size_of::<f64>()];
                let mut some = from.chunks(SOME * stored);
                some.try_for_each(|from| self.copy(from, &mut to[..from.len() / stored * wide]))
            }
            Self::Same(_) | Self::Bool(_) | Self::Float(..) => Ok(()),
        }
    }

    /// Runs work with the conversion of one element. Every pair of types rounds once.
    pub(super) fn each(self, work: impl PerElement) {
        use StoredDType as D;
        macro_rules! floats {
            ($from:ty, $to:ty, $convert:expr) => {
                work.run(|from| {
                    let convert: fn($from) -> $to = $convert;
                    convert(<$from>::from_le_bytes(from)).to_le_bytes()
                })
            };
        }
        match self {
            Self::Same(bytes) => match bytes {
                1 => work.run(|from: [u8; 1]| from),
                2 => work.run(|from: [u8; 2]| from),
                4 => work.run(|from: [u8; 4]| from),
                _ => work.run(|from: [u8; 8]| from),
            },
            Self::Bool(BoolStore::U32) => work.run(|[from]| u32::from(from).to_le_bytes()),
            Self::Bool(BoolStore::Native | BoolStore::U8) => work.run(|from: [u8; 1]| from),
            Self::Float(from_type, to_type) => match (from_type, to_type) {
                (D::F64, D::F32) => floats!(f64, f32, |x| x as f32),
                (D::F64, D::F16) => floats!(f64, f16, |x| f16::from_f32(to_odd(x))),
                (D::F64, D::BF16) => floats!(f64, bf16, |x| bf16::from_f32(to_odd(x))),
                (D::F32, D::F64) => floats!(f32, f64, f64::from),
                (D::F32, D::F16) => floats!(f32, f16, f16::from_f32),
                (D::F32, D::BF16) => floats!(f32, bf16, bf16::from_f32),
                (D::F16, D::F64) => floats!(f16, f64, f16::to_f64),
                (D::F16, D::F32) => floats!(f16, f32, f16::to_f32),
                (D::F16, D::BF16) => floats!(f16, bf16, |x| bf16::from_f32(x.to_f32())),
                (D::BF16, D::F64) => floats!(bf16, f64, bf16::to_f64),
                (D::BF16, D::F32) => floats!(bf16, f32, bf16::to_f32),
                (D::BF16, D::F16) => floats!(bf16, f16, |x| f16::from_f32(x.to_f32())),
                _ => unreachable!("`between` gives pairs of two float types"),
            },
        }
    }
}

/// Work that is compiled for each conversion.
pub(super) trait PerElement {
    /// Runs the work with the conversion of one element of `M` bytes in a file to `N` bytes in memory.
    fn run<const M: usize, const N: usize>(self, convert: impl Fn([u8; M]) -> [u8; N]);
}

/// Converts elements in their order.
struct Copy<'a> {
    from: &'a [u8],
    to: &'a mut [u8],
}

impl PerElement for Copy<'_> {
    fn run<const M: usize, const N: usize>(self, convert: impl Fn([u8; M]) -> [u8; N]) {
        let (from, to) = (self.from.as_chunks().0, self.to.as_chunks_mut().0);
        for (from, to) in from.iter().zip(to) {
            *to = convert(*from);
        }
    }
}

/// Returns whether values of a stored type can be cast to another float type.
pub(crate) fn can_cast(from: StoredDType, to: DType) -> bool {
    matches!(Transfer::between(from, to), Some(Transfer::Float(..)))
}

fn is_float(dtype: StoredDType) -> bool {
    use StoredDType as D;
    matches!(dtype, D::F64 | D::F32 | D::F16 | D::BF16)
}

/// Returns whether some finite values of a type are not finite after a cast.
fn is_narrower(from_type: StoredDType, to_type: StoredDType) -> bool {
    use StoredDType as D;
    matches!(
        (from_type, to_type),
        (D::F64, _) | (D::F32, D::F16 | D::BF16) | (D::BF16, D::F16)
    )
}

/// Returns the first finite value that is not finite after a cast.
fn overflow(from_type: StoredDType, to_type: StoredDType, from: &[u8], to: &[u8]) -> Option<f64> {
    if !is_narrower(from_type, to_type) || is_finite(to_type, to) {
        return None;
    }
    let elements = |dtype: StoredDType, bytes| <[u8]>::chunks(bytes, dtype.size_bytes() as usize);
    let mut pairs = elements(from_type, from).zip(elements(to_type, to));
    let (value, _) =
        pairs.find(|(from, to)| is_finite(from_type, from) && !is_finite(to_type, to))?;
    let mut wide = [0; size_of::<f64>()];
    let (from, to) = (value, &mut wide[..]);
    Transfer::between(from_type, DType::F64)?.each(Copy { from, to });
    Some(f64::from_le_bytes(wide))
}

/// Returns whether all elements are finite: no exponent has all its bits set.
fn is_finite(dtype: StoredDType, bytes: &[u8]) -> bool {
    fn below<const N: usize>(bytes: &[u8], high: u16) -> bool {
        let mut elements = bytes.as_chunks::<N>().0.iter();
        elements.all(|element| u16::from_le_bytes([element[N - 2], element[N - 1]]) & high != high)
    }
    match dtype {
        StoredDType::F64 => below::<8>(bytes, 0x7ff0),
        StoredDType::F16 => below::<2>(bytes, 0x7c00),
        StoredDType::BF16 => below::<2>(bytes, 0x7f80),
        _ => below::<4>(bytes, 0x7f80),
    }
}

/// Rounds a value to the neighbour with an odd last bit, unless the value is exact. Rounding the result to fewer bits then
/// equals rounding the value itself (Boldo and Melquiond, doi:10.1109/TC.2007.70819).
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    if nearest.is_nan() || f64::from(nearest) == value {
        return nearest;
    }
    // Rounds toward zero: the bits of a larger magnitude are a larger number.
    let is_larger = f64::from(nearest).abs() > value.abs();
    let bits = nearest.to_bits() - u32::from(is_larger);
    f32::from_bits(bits | 1)
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;
    use proptest::prelude::*;

    use super::*;

    fn copied(from: StoredDType, to: DType, bytes: &[u8]) -> Option<Vec<u8>> {
        let elements = bytes.len() as u64 / from.size_bytes();
        let mut out = vec![0xff; elements as usize * to.size()];
        Transfer::between(from, to)?.copy(bytes, &mut out).ok()?;
        Some(out)
    }

    #[test]
    fn booleans_are_checked() {
        let to = |store, bytes: &[u8]| copied(StoredDType::Bool, DType::Bool(store), bytes);
        assert_eq!(
            to(BoolStore::U32, &[1, 0]),
            Some(vec![1, 0, 0, 0, 0, 0, 0, 0])
        );
        assert_eq!(to(BoolStore::Native, &[1, 0]), Some(vec![1, 0]));
        assert_eq!(to(BoolStore::U8, &[2]), None);
        assert_eq!(copied(StoredDType::U8, DType::U8, &[2]), Some(vec![2]));
    }

    fn cast_f64(value: f64, to: DType) -> f64 {
        let cast = copied(StoredDType::F64, to, &value.to_le_bytes()).unwrap();
        TensorData::from_bytes_vec(cast, [1], to)
            .iter::<f64>()
            .next()
            .unwrap()
    }

    /// With two roundings, each of these would be a neighbour.
    #[test]
    fn a_cast_of_64_bits_rounds_once() {
        let two = |power: i32| 2_f64.powi(power);
        for (value, to, expected) in [
            (1.0 + two(-11) + two(-40), DType::F16, 1.0 + two(-10)),
            (1.0 + two(-11), DType::F16, 1.0),
            (1.0 + 3.0 * two(-11) - two(-40), DType::F16, 1.0 + two(-10)),
            (65_519.999_999_9, DType::F16, 65_504.0),
            (two(-25) * (1.0 + two(-40)), DType::F16, two(-24)),
            (two(-25), DType::F16, 0.0),
            (1.0 + two(-8) + two(-40), DType::BF16, 1.0 + two(-7)),
            (1.0 + two(-8), DType::BF16, 1.0),
        ] {
            assert_eq!(cast_f64(value, to), expected, "{value} to {to:?}");
            assert_eq!(cast_f64(-value, to), -expected, "{value} to {to:?}");
        }
        for value in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            assert_eq!(
                cast_f64(value, DType::F16).to_bits() >> 52,
                value.to_bits() >> 52
            );
        }
    }

    #[test]
    fn a_value_that_the_type_does_not_have_is_found() {
        let overflows = |from: StoredDType, to: DType, bytes: &[u8]| {
            let mut out = vec![0; bytes.len() / from.size_bytes() as usize * to.size()];
            match Transfer::between(from, to).unwrap().copy(bytes, &mut out) {
                Err(InvalidValue::Overflow(value)) => Some(value),
                _ => None,
            }
        };
        let f32s = |values: &[f32]| -> Vec<u8> {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect()
        };
        let large = f32s(&[1.0, f32::INFINITY, f32::NAN, -1e6]);
        assert_eq!(overflows(StoredDType::F32, DType::F16, &large), Some(-1e6));
        assert_eq!(overflows(StoredDType::F32, DType::BF16, &large), None);
        let most = f32s(&[f32::MAX]);
        assert_eq!(
            overflows(StoredDType::F32, DType::BF16, &most),
            Some(f64::from(f32::MAX))
        );
        assert_eq!(
            overflows(StoredDType::F64, DType::F32, &1e300_f64.to_le_bytes()),
            Some(1e300)
        );
        assert_eq!(
            overflows(StoredDType::F64, DType::F32, &f64::NAN.to_le_bytes()),
            None
        );
    }

    #[test]
    fn only_floats_are_cast() {
        let between = |from, to| Transfer::between(from, to).is_some();
        assert!(between(StoredDType::F32, DType::BF16));
        assert!(!between(StoredDType::F32, DType::I32));
        assert!(!between(StoredDType::I32, DType::I64));
        assert!(!between(StoredDType::U8, DType::Bool(BoolStore::U8)));
        assert!(!between(StoredDType::F32, DType::Flex32));
    }

    proptest! {
        /// Compares with Burn's own conversion, which uses the same intermediate type for these pairs, and makes some finite
        /// values infinite.
        #[test]
        fn casts_equal_the_casts_of_burn(bits in prop::collection::vec(any::<u32>(), 1..20)) {
            // Half of them in the range of all types.
            let value = |bits: &u32| match bits % 2 {
                0 => f32::from_bits(*bits),
                _ => f32::from_bits(*bits) % 65504.0,
            };
            let values: Vec<f32> = bits.iter().map(value).filter(|x| !x.is_nan()).collect();
            let data = TensorData::new(values.clone(), [values.len()]);
            for to in [DType::BF16, DType::F16, DType::F64] {
                let expected = data.clone().convert_dtype(to);
                let finite = |data: &TensorData| data.iter::<f64>().filter(|x| x.is_finite()).count();
                let found = copied(StoredDType::F32, to, data.as_bytes());
                prop_assert_eq!(found.is_none(), finite(&expected) < finite(&data));
                let Some(found) = found else {
                    continue;
                };
                prop_assert_eq!(&found[..], expected.as_bytes());
                // And back.
                let from = StoredDType::of(to).unwrap();
                let expected = expected.convert_dtype(DType::F32);
                let found = copied(from, DType::F32, &found).unwrap();
                prop_assert_eq!(&found[..], expected.as_bytes());
            }
        }
    }
}
