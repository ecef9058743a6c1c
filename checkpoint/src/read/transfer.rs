//! Conversion of file bytes to tensor bytes.

use burn::tensor::{BoolStore, DType};
use half::{bf16, f16};

use crate::StoredDType;

/// The conversion from file elements to tensor elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    /// No conversion.
    Same,
    /// Booleans, which are 0 or 1 in a file, to one of Burn's representations.
    Bool(BoolStore),
    /// One float type to another, rounding to nearest, ties to even.
    Float(StoredDType, StoredDType),
}

/// The error of a boolean that is neither 0 nor 1, which would be undefined behaviour as a `bool`.
#[derive(Debug)]
pub(super) struct InvalidBoolean;

impl Transfer {
    /// Returns the conversion from a stored type to a Burn dtype; `None` if there is none.
    pub(super) fn between(from: StoredDType, to: DType) -> Option<Self> {
        let stored = StoredDType::of(to)?;
        match to {
            DType::Bool(store) if from == StoredDType::Bool => Some(Self::Bool(store)),
            _ if stored == from => Some(Self::Same),
            _ if is_float(from) && is_float(stored) => Some(Self::Float(from, stored)),
            _ => None,
        }
    }

    /// Returns whether the bytes are the same in file and tensor, so that they can be read directly.
    pub(super) fn is_copy(self) -> bool {
        self == Self::Same
    }

    /// Converts elements.
    pub(super) fn copy(self, from: &[u8], to: &mut [u8]) -> Result<(), InvalidBoolean> {
        match self {
            Self::Same => to.copy_from_slice(from),
            Self::Bool(_) if from.iter().any(|b| *b > 1) => return Err(InvalidBoolean),
            Self::Bool(BoolStore::U32) => {
                for (from, to) in from.iter().zip(to.chunks_exact_mut(4)) {
                    to.copy_from_slice(&u32::from(*from).to_le_bytes());
                }
            }
            Self::Bool(BoolStore::Native | BoolStore::U8) => to.copy_from_slice(from),
            Self::Float(from_type, to_type) => cast(from_type, to_type, from, to),
        }
        Ok(())
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

/// Every pair of types through the wider of the two, so that there is one rounding.
fn cast(from_type: StoredDType, to_type: StoredDType, from: &[u8], to: &mut [u8]) {
    use StoredDType as D;
    macro_rules! each {
        ($from:ty, $to:ty, $convert:expr) => {{
            let (from, _) = from.as_chunks::<{ size_of::<$from>() }>();
            let (to, _) = to.as_chunks_mut::<{ size_of::<$to>() }>();
            for (from, to) in from.iter().zip(to) {
                let convert: fn($from) -> $to = $convert;
                *to = convert(<$from>::from_le_bytes(*from)).to_le_bytes();
            }
        }};
    }
    match (from_type, to_type) {
        (D::F64, D::F32) => each!(f64, f32, |x| x as f32),
        (D::F64, D::F16) => each!(f64, f16, f16::from_f64),
        (D::F64, D::BF16) => each!(f64, bf16, bf16::from_f64),
        (D::F32, D::F64) => each!(f32, f64, f64::from),
        (D::F32, D::F16) => each!(f32, f16, f16::from_f32),
        (D::F32, D::BF16) => each!(f32, bf16, bf16::from_f32),
        (D::F16, D::F64) => each!(f16, f64, f16::to_f64),
        (D::F16, D::F32) => each!(f16, f32, f16::to_f32),
        (D::F16, D::BF16) => each!(f16, bf16, |x| bf16::from_f32(x.to_f32())),
        (D::BF16, D::F64) => each!(bf16, f64, bf16::to_f64),
        (D::BF16, D::F32) => each!(bf16, f32, bf16::to_f32),
        (D::BF16, D::F16) => each!(bf16, f16, |x| f16::from_f32(x.to_f32())),
        _ => unreachable!("`between` gives pairs of two float types"),
    }
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
    fn truth_values_are_checked() {
        let to = |store, bytes: &[u8]| copied(StoredDType::Bool, DType::Bool(store), bytes);
        assert_eq!(
            to(BoolStore::U32, &[1, 0]),
            Some(vec![1, 0, 0, 0, 0, 0, 0, 0])
        );
        assert_eq!(to(BoolStore::Native, &[1, 0]), Some(vec![1, 0]));
        assert_eq!(to(BoolStore::U8, &[2]), None);
        assert_eq!(copied(StoredDType::U8, DType::U8, &[2]), Some(vec![2]));
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
        /// Compares with Burn's own conversion, which uses the same intermediate type for these pairs.
        #[test]
        fn a_cast_is_that_of_burn(bits in prop::collection::vec(any::<u32>(), 1..20)) {
            let values: Vec<f32> = bits.iter().map(|bits| f32::from_bits(*bits)).filter(|x| !x.is_nan()).collect();
            let data = TensorData::new(values.clone(), [values.len()]);
            for to in [DType::BF16, DType::F16, DType::F64] {
                let expected = data.clone().convert_dtype(to);
                let found = copied(StoredDType::F32, to, data.as_bytes()).unwrap();
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
