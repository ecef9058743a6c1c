//! Tensors of the backends that run programs.

use burn_dispatch::{BackendTensor, DispatchKindConversion, DispatchTensor};
use burn_ir::{BackendIr, HandleKind};
use tinderbox_fake::DynTensor;

use crate::ProgramError;

/// A backend whose tensors can be on Burn's devices.
pub(crate) trait DeviceBackend: BackendIr {
    /// Converts a tensor of the backend to one of a device.
    fn to_dyn(tensor: HandleKind<Self>) -> DynTensor;

    /// Converts a tensor of a device to one of the backend.
    ///
    /// # Errors
    ///
    /// When the tensor is on another backend, or in autodiff.
    fn of_dyn(tensor: DynTensor) -> Result<HandleKind<Self>, ProgramError>;
}

impl<B: BackendIr> DeviceBackend for B
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn to_dyn(tensor: HandleKind<Self>) -> DynTensor {
        let tensor = match tensor {
            HandleKind::Float(t) => BackendTensor::Float(t),
            HandleKind::Int(t) => BackendTensor::Int(t),
            HandleKind::Bool(t) => BackendTensor::Bool(t),
            HandleKind::Quantized(t) => BackendTensor::Quantized(t),
        };
        <DispatchTensor as DispatchKindConversion<B>>::from_backend(tensor).into()
    }

    fn of_dyn(tensor: DynTensor) -> Result<HandleKind<Self>, ProgramError> {
        let meta = tensor.meta();
        match <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor.into()) {
            Ok(BackendTensor::Float(t)) => Ok(HandleKind::Float(t)),
            Ok(BackendTensor::Int(t)) => Ok(HandleKind::Int(t)),
            Ok(BackendTensor::Bool(t)) => Ok(HandleKind::Bool(t)),
            _ => Err(ProgramError::InputDevice {
                tensor: meta.to_string(),
            }),
        }
    }
}
