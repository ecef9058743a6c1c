//! Random values of a stream as tensors, on every device that can run programs.

use burn::tensor::{DType, Device, Distribution, Shape};
use burn_backend::ops::{FloatTensorOps, IntTensorOps};
use burn_dispatch::DispatchDevice;
use burn_flex::Flex;
use burn_ir::HandleKind;
use tinderbox_fake::{DynTensor, Region, TensorKind};

use super::{RandomError, Stream, generate_region};
use crate::check_device;
use crate::device::DeviceBackend;

/// Generates random values of a stream for a region of a tensor, on a device: the bits of [`generate_region`], in a
/// tensor of the region's shape.
///
/// On a GPU a kernel is queued that writes into the new tensor; nothing is copied from the host, and no memory except
/// the tensor is allocated. Time is in proportion to the region; one that does not begin and end at multiples of four
/// elements (two, for elements of 64 bits), or whose rows do not, needs up to four times as much.
///
/// # Errors
///
/// As [`generate_region`], and when the device does not exist.
pub fn generate_on_device(
    device: &Device,
    stream: &Stream,
    distribution: Distribution,
    whole: &Shape,
    region: &Region,
    dtype: DType,
) -> Result<DynTensor, RandomError> {
    check_device(device)?;
    let wanted = Wanted {
        stream,
        distribution,
        whole,
        region,
        dtype,
    };
    let device = device.clone().without_autodiff();
    match device.as_dispatch() {
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) => wanted.on::<burn_cubecl::Cube>(device),
        DispatchDevice::Flex(device) => wanted.on::<Flex>(device),
        _ => unreachable!("the device was checked"),
    }
}

/// Runs the generator without writing its values: each of `units` computes `blocks_per_unit` blocks of four words
/// and keeps one word. Compared with [`generate_on_device`] it separates the time of the arithmetic from the time of
/// the memory. `None` for devices without kernels.
#[doc(hidden)]
#[cfg_attr(
    not(feature = "cubecl"),
    expect(unused_variables, reason = "no kernels run")
)]
pub fn words_only(device: &Device, units: usize, blocks_per_unit: u32) -> Option<DynTensor> {
    match device.as_dispatch() {
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) => {
            let words = crate::random::cube::blocks_on(device, units, blocks_per_unit);
            let words = HandleKind::Int(cube::fused(device, words));
            Some(burn_cubecl::Cube::to_dyn(words))
        }
        _ => None,
    }
}

/// A region of the values of a stream.
pub(crate) struct Wanted<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) distribution: Distribution,
    pub(crate) whole: &'a Shape,
    pub(crate) region: &'a Region,
    pub(crate) dtype: DType,
}

impl Wanted<'_> {
    fn on<B: RandomBackend>(&self, device: &B::Device) -> Result<DynTensor, RandomError> {
        B::random(device, self).map(B::to_dyn)
    }
}

/// A backend that can run programs.
pub(crate) trait RandomBackend: DeviceBackend {
    /// Returns a tensor of the requested values, the same bits on every backend.
    ///
    /// # Errors
    ///
    /// When the distribution's parameters are invalid, or random values of this dtype are not supported.
    fn random(device: &Self::Device, wanted: &Wanted<'_>) -> Result<HandleKind<Self>, RandomError>;
}

impl RandomBackend for Flex {
    fn random(device: &Self::Device, w: &Wanted<'_>) -> Result<HandleKind<Self>, RandomError> {
        let data = generate_region(w.stream, w.distribution, w.whole, w.region, w.dtype)?;
        Ok(match TensorKind::of(w.dtype) {
            TensorKind::Float => HandleKind::Float(Self::float_from_data(data, device)),
            _ => HandleKind::Int(Self::int_from_data(data, device)),
        })
    }
}

#[cfg(feature = "cubecl")]
mod cube {
    use burn_backend::tensor::IntTensor;
    use burn_cubecl::tensor::CubeTensor;
    use burn_cubecl::{Cube, CubeBackend, CubeDevice};
    use burn_fusion::stream::StreamId;
    use burn_fusion::{NoOp, get_client};
    use burn_ir::{InitOperationIr, OperationIr, OperationOutput};

    use super::*;
    use crate::random::cube::generate_on;

    /// The output of a kernel, as a tensor of Burn's fusion.
    pub(super) fn fused(device: &CubeDevice, made: CubeTensor) -> IntTensor<Cube> {
        let (shape, dtype) = (made.meta.shape().clone(), made.dtype);
        let client = get_client::<CubeBackend>(device);
        let handle = made.into();
        let init = InitOperationIr::create(shape, dtype, || client.register_tensor_handle(handle));
        let operation = OperationIr::Init(init);
        let stream = StreamId::current();
        let registered = client.register(stream, operation, NoOp::<CubeBackend>::new());
        registered.output()
    }

    impl RandomBackend for Cube {
        /// The kernel is launched immediately, on this thread's stream; operations that read its output are fused
        /// and queued after it.
        fn random(device: &CubeDevice, w: &Wanted<'_>) -> Result<HandleKind<Self>, RandomError> {
            let made = generate_on(device, w.stream, w.distribution, w.whole, w.region, w.dtype)?;
            let made = fused(device, made);
            Ok(match TensorKind::of(w.dtype) {
                TensorKind::Float => HandleKind::Float(made),
                _ => HandleKind::Int(made),
            })
        }
    }
}
