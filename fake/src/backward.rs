//! Burn's backward pass over fake tensors.

use burn_autodiff::{Autodiff, grads::Gradients};
use burn_backend::{AutodiffBackend, tensor::FloatTensor};
use burn_capture::CaptureBackend;
use burn_dispatch::{BackendTensor, DispatchKindConversion, DispatchTensor};

use crate::DynTensor;

/// Burn's autodiff over the recording backend: its backward pass records itself.
type Tracked = Autodiff<CaptureBackend>;

/// The gradients of a fake tensor of one element.
#[expect(missing_debug_implementations, reason = "Burn's gradients have none")]
pub struct Backward(Gradients);

impl Backward {
    /// Runs the backward pass of a fake tensor of one element, which records its operations; `None` for a tensor that is not
    /// in autodiff.
    pub fn of(tensor: DynTensor) -> Option<Self> {
        Some(Self(Tracked::backward(tracked(tensor)?)))
    }

    /// Returns the gradient of a tensor; `None` if it has none.
    pub fn gradient(&self, tensor: DynTensor) -> Option<DynTensor> {
        let gradient = Tracked::grad(&tracked(tensor)?, &self.0)?;
        Some(DynTensor::captured(BackendTensor::Float(gradient)))
    }
}

fn tracked(tensor: DynTensor) -> Option<FloatTensor<Tracked>> {
    let tensor: DispatchTensor = tensor.into();
    match <DispatchTensor as DispatchKindConversion<Tracked>>::try_into_backend(tensor) {
        Ok(BackendTensor::Float(tensor)) => Some(tensor),
        _ => None,
    }
}
