//! Places in a forward function that its author marks.

use burn::tensor::{Tensor, kind::Basic};

use crate::DynTensor;
use crate::scope::add_mark;

/// Marks a place at which a forward function may be cut into stages: after the operation that computes this value.
/// The tensor is unchanged. A recording stores its value ([`Recording::marks`](crate::Recording::marks)) and adds no
/// operation. Cost outside of a recording: a read of a thread-local variable.
pub fn mark<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Tensor<D, K> {
    add_mark(|| DynTensor::from(tensor.clone()).captured_id());
    tensor
}
