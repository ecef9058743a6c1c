//! Scalar values of an optimizer's state.

use derive_more::{Display, TryInto};
use serde::{Deserialize, Serialize};

/// A scalar value of an optimizer's state, such as a step count or the power of a moment.
///
/// Two scalars are equal if their types and bits are equal: a `NaN` equals itself, and `0.0` does not equal `-0.0`.
#[derive(Clone, Copy, Debug, Display, TryInto, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scalar {
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// A float; stored as the 16 hexadecimal digits of its bits, because JSON has no infinities or NaN.
    #[serde(with = "float_bits")]
    #[display("{_0:e}")]
    Float(f64),
    /// A boolean.
    Bool(bool),
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Uint(a), Self::Uint(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a.to_bits() == b.to_bits(),
            (Self::Bool(a), Self::Bool(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Scalar {}

mod float_bits {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:016x}", value.to_bits()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bits = u64::from_str_radix(&text, 16).map_err(D::Error::custom)?;
        if format!("{bits:016x}") != text {
            let message = "the bits of a float are 16 lower-case hexadecimal digits";
            return Err(D::Error::custom(message));
        }
        Ok(f64::from_bits(bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_survives() {
        for (scalar, text) in [
            (Scalar::Int(i64::MIN), r#"{"int":-9223372036854775808}"#),
            (Scalar::Uint(u64::MAX), r#"{"uint":18446744073709551615}"#),
            (Scalar::Float(1.0), r#"{"float":"3ff0000000000000"}"#),
            (Scalar::Float(-0.0), r#"{"float":"8000000000000000"}"#),
            (
                Scalar::Float(f64::from_bits(0x7ff4_0000_dead_beef)),
                r#"{"float":"7ff40000deadbeef"}"#,
            ),
            (Scalar::Bool(true), r#"{"bool":true}"#),
        ] {
            assert_eq!(serde_json::to_string(&scalar).unwrap(), text);
            assert_eq!(serde_json::from_str::<Scalar>(text).unwrap(), scalar);
        }
        assert_ne!(Scalar::Float(0.0), Scalar::Float(-0.0));
        assert_ne!(Scalar::Int(1), Scalar::Uint(1));
        for text in [r#"{"float":"+ff0000000000000"}"#, r#"{"float":"1"}"#, "{}"] {
            assert!(serde_json::from_str::<Scalar>(text).is_err(), "{text}");
        }
    }
}
