//! Names of dtypes, for users and for text files.

use burn::tensor::{BoolStore, DType, Device};
use burn_dispatch::DispatchDevice;

/// The name of every dtype that can be recorded. Quantized dtypes can't.
const NAMES: [(DType, &str); 16] = [
    (DType::F64, "f64"),
    (DType::F32, "f32"),
    (DType::Flex32, "flex32"),
    (DType::F16, "f16"),
    (DType::BF16, "bf16"),
    (DType::I64, "i64"),
    (DType::I32, "i32"),
    (DType::I16, "i16"),
    (DType::I8, "i8"),
    (DType::U64, "u64"),
    (DType::U32, "u32"),
    (DType::U16, "u16"),
    (DType::U8, "u8"),
    (DType::Bool(BoolStore::Native), "bool"),
    (DType::Bool(BoolStore::U8), "bool_u8"),
    (DType::Bool(BoolStore::U32), "bool_u32"),
];

/// Returns the short name of a dtype: `f32`, `bf16`, `bool`. Booleans that are not stored as Rust's `bool` include
/// their storage: `bool_u8`.
pub fn dtype_name(dtype: DType) -> &'static str {
    let named = NAMES.iter().find(|(known, _)| *known == dtype);
    named.map_or("quantized", |(_, name)| name)
}

/// Returns the dtype that values of a recorded dtype have on a device. It differs only for booleans: CubeCL's kernels
/// have no native booleans, so booleans are bytes of 0 and 1 there (`bool_u8`).
pub fn dtype_on(dtype: DType, device: &Device) -> DType {
    use DispatchDevice::{Capture, Flex};
    // Kernels of CubeCL run on every device except `flex` and recording devices.
    let is_cube = || !matches!(device.as_dispatch().clone().inner(), Flex(_) | Capture(_));
    match dtype {
        DType::Bool(BoolStore::Native) if is_cube() => DType::Bool(BoolStore::U8),
        _ => dtype,
    }
}

/// Serializes dtypes by their short names, for fields with
/// `#[serde(with = "tinderbox_fake::dtype_names")]`.
pub mod dtype_names {
    use burn::tensor::DType;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::{NAMES, dtype_name};

    /// Writes the name.
    ///
    /// # Errors
    ///
    /// When the serializer fails.
    pub fn serialize<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(dtype_name(*dtype))
    }

    /// Reads a name.
    ///
    /// # Errors
    ///
    /// When no dtype that can be recorded has this name.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
        let name = String::deserialize(from)?;
        let known = NAMES.iter().find(|(_, known)| *known == name);
        known.map(|(dtype, _)| *dtype).ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(_, name)| *name).collect();
            D::Error::custom(format!(
                "`{name}` is not a dtype: the dtypes are {}",
                names.join(", ")
            ))
        })
    }
}
