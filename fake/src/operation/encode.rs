//! The bytes of operations, for comparisons and hashes.

use burn_ir::{TensorId, TensorStatus};
use serde::Serialize;

use super::{Operation, change_tensors};

/// Appends a value as CBOR. Two operations have the same bytes only if they are equal.
///
/// Bytes are compared because equality of Burn's operations is the equality of floats, for which -0 equals 0 and NaN
/// differs from NaN, and because their hash ignores the arguments of distributions.
pub fn encode(value: &impl Serialize, bytes: &mut Vec<u8>) {
    ciborium::into_writer(value, bytes).expect("recorded values can be encoded");
}

impl Operation<'_> {
    /// Appends the operation without the ids and statuses of its tensors, as bytes. Two operations have the same bytes only
    /// if they compute the same results from the same operands.
    pub fn write_attributes(self, bytes: &mut Vec<u8>) {
        let mut attributes = self.0.clone();
        change_tensors(&mut attributes, |tensor| {
            tensor.id = TensorId::new(0);
            tensor.status = TensorStatus::ReadOnly;
        });
        encode(&attributes, bytes);
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Shape};
    use burn_ir::{NumericOperationIr, OperationIr, ScalarIr, ScalarOpIr, TensorIr};

    use super::*;

    fn attributes(operation: &OperationIr) -> Vec<u8> {
        let mut bytes = Vec::new();
        Operation::from(operation).write_attributes(&mut bytes);
        bytes
    }

    fn tensor(id: u64, status: TensorStatus, dtype: DType) -> TensorIr {
        TensorIr {
            id: TensorId::new(id),
            shape: Shape::new([2, 3]),
            status,
            dtype,
        }
    }

    fn multiplied(lhs: TensorIr, rhs: f64) -> OperationIr {
        let out = tensor(9, TensorStatus::NotInit, DType::F32);
        let rhs = ScalarIr::Float(rhs);
        let scaled = NumericOperationIr::MulScalar(ScalarOpIr { lhs, rhs, out });
        OperationIr::NumericFloat(DType::F32, scaled)
    }

    #[test]
    fn ids_and_statuses_are_left_out_and_all_else_counts() {
        let read = || tensor(1, TensorStatus::ReadOnly, DType::F32);
        let one = attributes(&multiplied(read(), 0.0));
        let other = tensor(5, TensorStatus::ReadWrite, DType::F32);
        assert_eq!(one, attributes(&multiplied(other, 0.0)));
        let half = tensor(1, TensorStatus::ReadOnly, DType::F16);
        assert_ne!(one, attributes(&multiplied(half, 0.0)));
        assert_ne!(one, attributes(&multiplied(read(), -0.0)));
        assert_ne!(one, attributes(&multiplied(read(), 1.0)));
        // A NaN equals itself here, unlike in a comparison of floats.
        let nan = || attributes(&multiplied(read(), f64::NAN));
        assert_eq!(nan(), nan());
    }
}
