//! Element types in files.

use std::borrow::Cow;

use burn::tensor::{BoolStore, DType};
use derive_more::Display;
use serde::{Deserialize, Serialize};

#[cfg(target_endian = "big")]
compile_error!("safetensors data is little-endian, and this crate writes memory as it is");

/// The element type of a stored tensor, by its safetensors name.
///
/// Burn stores booleans in three ways; in a file a boolean is always one byte, 0 or 1.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[display("{}", self.name())]
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum StoredDType {
    /// Boolean, one byte.
    Bool,
    /// Unsigned integer of 8 bits.
    U8,
    /// Signed integer of 8 bits.
    I8,
    /// Unsigned integer of 16 bits.
    U16,
    /// Signed integer of 16 bits.
    I16,
    /// IEEE 754 float of 16 bits.
    F16,
    /// Float of 16 bits with the exponent of an `f32`.
    BF16,
    /// Unsigned integer of 32 bits.
    U32,
    /// Signed integer of 32 bits.
    I32,
    /// IEEE 754 float of 32 bits.
    F32,
    /// Unsigned integer of 64 bits.
    U64,
    /// Signed integer of 64 bits.
    I64,
    /// IEEE 754 float of 64 bits.
    F64,
}

impl StoredDType {
    /// Every stored type with its name and Burn dtype; booleans in Burn's native form.
    const ALL: [(Self, &'static str, DType); 13] = [
        (Self::Bool, "BOOL", DType::Bool(BoolStore::Native)),
        (Self::U8, "U8", DType::U8),
        (Self::I8, "I8", DType::I8),
        (Self::U16, "U16", DType::U16),
        (Self::I16, "I16", DType::I16),
        (Self::F16, "F16", DType::F16),
        (Self::BF16, "BF16", DType::BF16),
        (Self::U32, "U32", DType::U32),
        (Self::I32, "I32", DType::I32),
        (Self::F32, "F32", DType::F32),
        (Self::U64, "U64", DType::U64),
        (Self::I64, "I64", DType::I64),
        (Self::F64, "F64", DType::F64),
    ];

    /// Returns the stored type of a Burn dtype, or `None` for quantized and `Flex32` tensors.
    pub fn of(dtype: DType) -> Option<Self> {
        let stored = match dtype {
            DType::Bool(_) => DType::Bool(BoolStore::Native),
            dtype => dtype,
        };
        let mut rows = Self::ALL.iter();
        rows.find(|row| row.2 == stored).map(|row| row.0)
    }

    /// Returns the Burn dtype; booleans in Burn's native form.
    pub fn burn(self) -> DType {
        Self::ALL[self as usize].2
    }

    /// Returns the safetensors name.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Returns the size of one element in bytes.
    pub fn size_bytes(self) -> u64 {
        self.burn().size() as u64
    }

    /// Returns the type with this safetensors name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|row| row.1 == name).map(|row| row.0)
    }
}

/// Returns the bytes of a tensor as stored in a file. Copies only booleans that are not yet one byte each.
pub(crate) fn stored_bytes(bytes: &[u8], dtype: DType) -> Cow<'_, [u8]> {
    match dtype {
        DType::Bool(BoolStore::U32) => truths(bytes, 4),
        DType::Bool(_) if bytes.iter().any(|b| *b > 1) => truths(bytes, 1),
        _ => bytes.into(),
    }
}

/// Returns 1 for each element that is not zero, and 0 for the others.
fn truths(bytes: &[u8], element: usize) -> Cow<'_, [u8]> {
    let is_true = |word: &[u8]| u8::from(word.iter().any(|b| *b != 0));
    bytes.chunks(element).map(is_true).collect()
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for (dtype, name, burn) in StoredDType::ALL {
            assert_eq!((dtype.name(), dtype.burn()), (name, burn));
            assert_eq!(StoredDType::of(burn), Some(dtype));
            assert_eq!(StoredDType::from_name(name), Some(dtype));
            assert_eq!(
                serde_json::to_string(&dtype).unwrap(),
                format!("\"{name}\"")
            );
        }
        let sizes = StoredDType::ALL.map(|(dtype, ..)| dtype.size_bytes());
        assert_eq!(sizes, [1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8]);
        assert_eq!(StoredDType::of(DType::Flex32), None);
        assert_eq!(StoredDType::from_name("F8_E4M3"), None);
    }

    #[test]
    fn booleans_are_one_byte_in_files() {
        let words = [1u32, 0, 256].into_iter().flat_map(u32::to_le_bytes);
        let data = TensorData::from_bytes_vec(words.collect(), [3], DType::Bool(BoolStore::U32));
        assert_eq!(*stored_bytes(data.as_bytes(), data.dtype()), [1, 0, 1]);
        let data = TensorData::from_bytes_vec(vec![0, 255], [2], DType::Bool(BoolStore::U8));
        assert_eq!(*stored_bytes(data.as_bytes(), data.dtype()), [0, 1]);
    }
}
