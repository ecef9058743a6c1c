//! Places in a forward that its author names.

use std::cell::RefCell;

use burn::tensor::{Tensor, kind::Basic};
use burn_ir::TensorId;

use crate::DynTensor;

thread_local! {
    /// Marks of the recordings that run on this thread, the innermost last. A recording runs its closure
    /// on the thread that asked for it, and nothing else can be handed to the author's forward.
    static MARKS: RefCell<Vec<Vec<TensorId>>> = const { RefCell::new(Vec::new()) };
}

/// Marks a place where a forward may be cut into stages: behind what makes this value. While the forward
/// is recorded, the value is remembered ([`Recording::marks`](crate::Recording::marks)) and no operation
/// is added. The identity everywhere else, and it costs nothing there but a look at a thread's
/// variable.
pub fn cut<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Tensor<D, K> {
    MARKS.with_borrow_mut(|recordings| {
        if let Some(marks) = recordings.last_mut() {
            marks.extend(DynTensor::from(tensor.clone()).captured_id());
        }
    });
    tensor
}

/// The marks of one recording; they are dropped with it, also while a panic unwinds.
pub(crate) struct Marking {
    depth: usize,
}

impl Marking {
    pub(crate) fn begin() -> Self {
        MARKS.with_borrow_mut(|recordings| {
            recordings.push(Vec::new());
            Self {
                depth: recordings.len(),
            }
        })
    }

    /// The marks so far, of this recording and none inside it.
    pub(crate) fn end(self) -> Vec<TensorId> {
        MARKS.with_borrow_mut(|recordings| {
            recordings.truncate(self.depth);
            recordings
                .last_mut()
                .map(std::mem::take)
                .unwrap_or_default()
        })
    }
}

impl Drop for Marking {
    fn drop(&mut self) {
        MARKS.with_borrow_mut(|recordings| recordings.truncate(self.depth - 1));
    }
}
