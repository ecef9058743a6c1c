//! Tensors as the interpreter of a backend takes them.

use burn_dispatch::{BackendTensor, DispatchKindConversion, DispatchTensor};
use burn_ir::{BackendIr, HandleKind};
use tinderbox_fake::DynTensor;

use crate::ProgramError;

/// Converts a tensor to one of a backend.
pub(super) fn handle<B: BackendIr>(tensor: DynTensor) -> Result<HandleKind<B>, ProgramError>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let wrong = |tensor: String| ProgramError::InputDevice { tensor };
    let meta = tensor.meta();
    match <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor.into()) {
        Ok(BackendTensor::Float(t)) => Ok(HandleKind::Float(t)),
        Ok(BackendTensor::Int(t)) => Ok(HandleKind::Int(t)),
        Ok(BackendTensor::Bool(t)) => Ok(HandleKind::Bool(t)),
        Ok(BackendTensor::Quantized(_) | BackendTensor::Autodiff(_)) | Err(_) => {
            Err(wrong(meta.to_string()))
        }
    }
}
