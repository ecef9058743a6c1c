//! Random values of a stream as tensors, on every device that can run programs.

use burn::tensor::{DType, Device, Distribution, Shape};
use burn_dispatch::DispatchDevice;
use tinderbox_fake::{DynTensor, Region};

use super::{RandomError, Stream, generate_region};
use crate::check_device;

/// Generates random values of a stream for a region of a tensor, on a device: the bits of [`generate_region`], in a
/// tensor of the region's shape.
///
/// On a GPU a kernel is queued that writes into the new tensor; nothing is copied from the host, and no memory except
/// the tensor is allocated. Time is in proportion to the region. A region needs up to four times as long if it or its rows
/// do not begin and end at multiples of four elements (two, for elements of 64 bits).
///
/// # Errors
///
/// When the device does not exist, and the errors of [`generate_region`].
pub fn generate_on_device(
    device: &Device,
    stream: &Stream,
    distribution: Distribution,
    whole: &Shape,
    region: &Region,
    dtype: DType,
) -> Result<DynTensor, RandomError> {
    check_device(device)?;
    let device = device.clone().without_autodiff();
    match device.as_dispatch() {
        // The kernel is launched immediately, on this thread's stream; operations that read its output are fused and
        // queued after it.
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) => {
            use super::cube::generate_on;
            let made = generate_on(device, stream, distribution, whole, region, dtype)?;
            Ok(fused(device, made))
        }
        DispatchDevice::Flex(_) => {
            let data = generate_region(stream, distribution, whole, region, dtype)?;
            Ok(DynTensor::from_data(data, &device))
        }
        _ => unreachable!("the device was checked"),
    }
}

/// Runs the generator without writing its values: each of `units` computes `blocks_per_unit` blocks of four words
/// and keeps one word. The difference to [`generate_on_device`] is the time of the memory. `None` for devices without
/// kernels.
#[doc(hidden)]
// Without kernels, nothing runs.
#[cfg_attr(not(feature = "cubecl"), expect(unused_variables))]
pub fn words_only(device: &Device, units: usize, blocks_per_unit: u32) -> Option<DynTensor> {
    match device.as_dispatch() {
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) => {
            let words = super::cube::blocks_on(device, units, blocks_per_unit);
            Some(fused(device, words))
        }
        _ => None,
    }
}

/// Converts the output of a kernel to a tensor of Burn's fusion.
#[cfg(feature = "cubecl")]
fn fused(device: &burn_cubecl::CubeDevice, made: burn_cubecl::tensor::CubeTensor) -> DynTensor {
    use burn_cubecl::{Cube, CubeBackend};
    use burn_fusion::stream::StreamId;
    use burn_fusion::{NoOp, get_client};
    use burn_ir::{HandleKind, InitOperationIr, OperationIr, OperationOutput};
    use tinderbox_fake::TensorKind;

    use crate::device::DeviceBackend;

    let (shape, dtype) = (made.meta.shape().clone(), made.dtype);
    let client = get_client::<CubeBackend>(device);
    let handle = made.into();
    let init = InitOperationIr::create(shape, dtype, || client.register_tensor_handle(handle));
    let operation = OperationIr::Init(init);
    let stream = StreamId::current();
    let registered = client.register(stream, operation, NoOp::<CubeBackend>::new());
    let made = registered.output();
    Cube::to_dyn(match TensorKind::of(dtype) {
        TensorKind::Float => HandleKind::Float(made),
        _ => HandleKind::Int(made),
    })
}
