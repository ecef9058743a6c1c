//! Tensors without values, and the one check that all tests of costs make.

use burn_backend::{DType, Shape};
use burn_ir::{OperationIr, TensorId, TensorIr};

use super::{OperationCost, operation_cost};

/// The id of every output that a test makes; inputs take others.
const OUTPUT: u64 = 1000;

/// A tensor of f32.
pub(super) fn tensor(id: u64, dims: &[usize]) -> TensorIr {
    tensor_of(id, dims, DType::F32)
}

/// A tensor of indices, i64.
pub(super) fn indices(id: u64, dims: &[usize]) -> TensorIr {
    tensor_of(id, dims, DType::I64)
}

/// A tensor of a dtype.
pub(super) fn tensor_of(id: u64, dims: &[usize], dtype: DType) -> TensorIr {
    TensorIr::uninit(TensorId::new(id), Shape::from(dims.to_vec()), dtype)
}

/// The id of an output.
pub(super) fn output() -> TensorId {
    TensorId::new(OUTPUT)
}

/// Compares the cost of an operation with FLOPs, bytes read and bytes written.
#[track_caller]
pub(super) fn check(operation: OperationIr, expected: (u64, u64, u64)) {
    let OperationCost {
        flops,
        bytes_read,
        bytes_written,
    } = operation_cost(&operation);
    assert_eq!(
        (flops, bytes_read, bytes_written),
        expected,
        "{operation:?}"
    );
}
