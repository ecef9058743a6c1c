//! Places in a forward function that its author marks.

use std::cell::RefCell;

use burn::tensor::{Tensor, kind::Basic};
use burn_ir::TensorId;

use crate::DynTensor;

thread_local! {
    /// Marks of the recordings that run on this thread, the innermost last. A recording runs its closure
    /// on the calling thread, and the forward function has no parameter for the marks.
    pub(crate) static MARKS: RefCell<Vec<Vec<TensorId>>> = const { RefCell::new(Vec::new()) };
}

/// Marks a place at which a forward function may be cut into stages: after the operation that computes this value.
/// While the forward function is recorded, the value is stored ([`Recording::marks`](crate::Recording::marks)) and no
/// operation is added. Otherwise it returns the tensor, at the cost of reading a thread-local variable.
pub fn cut<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Tensor<D, K> {
    MARKS.with_borrow_mut(|recordings| {
        if let Some(marks) = recordings.last_mut() {
            marks.extend(DynTensor::from(tensor.clone()).captured_id());
        }
    });
    tensor
}
