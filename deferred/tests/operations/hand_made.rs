//! Operations that no call records, added to a recording by hand.

use burn::tensor::{DType, Device};
use burn_capture::{CaptureBackend, CaptureChannel};
use burn_dispatch::{BackendTensor, DispatchDevice, DispatchKindConversion, DispatchTensor};
use burn_ir::{OperationIr, TensorIr};
use burn_router::{RouterClient, RouterTensor, get_client};
use tinderbox_fake::{DynTensor, TensorKind};

/// Whether the device records.
pub(crate) fn records(device: &Device) -> bool {
    matches!(device.as_dispatch(), DispatchDevice::Capture(_))
}

/// Records an operation on `inputs`, and returns its output.
pub(crate) fn hand_made<const D: usize>(
    device: &Device,
    inputs: Vec<DynTensor>,
    (shape, dtype): ([usize; D], DType),
    make: impl FnOnce(Vec<TensorIr>, TensorIr) -> OperationIr,
) -> DynTensor {
    let DispatchDevice::Capture(capture) = device.as_dispatch() else {
        panic!("operations can only be added to a recording");
    };
    let client = get_client::<CaptureChannel>(capture);
    let inputs = inputs.into_iter().map(|input| primitive(input).into_ir());
    let out = client.create_empty_handle();
    let out_ir = TensorIr::uninit(out, shape.into(), dtype);
    client.register_op(make(inputs.collect(), out_ir));
    let tensor = RouterTensor::new(out, shape.into(), dtype, client);
    let tensor = match TensorKind::of(dtype) {
        TensorKind::Float => BackendTensor::Float(tensor),
        TensorKind::Int => BackendTensor::Int(tensor),
        TensorKind::Bool => BackendTensor::Bool(tensor),
    };
    <DispatchTensor as DispatchKindConversion<CaptureBackend>>::from_backend(tensor).into()
}

fn primitive(tensor: DynTensor) -> RouterTensor<burn_capture::CaptureClient> {
    type Plain = CaptureBackend;
    match <DispatchTensor as DispatchKindConversion<Plain>>::try_into_backend(tensor.into()) {
        Ok(BackendTensor::Float(t) | BackendTensor::Int(t) | BackendTensor::Bool(t)) => t,
        _ => panic!("not a recorded tensor"),
    }
}
