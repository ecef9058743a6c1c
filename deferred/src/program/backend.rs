//! How each backend makes random values of a stream.

use burn::tensor::{DType, Distribution, Shape};
use burn_backend::ops::{FloatTensorOps, IntTensorOps};
use burn_backend::tensor::Device;
use burn_flex::Flex;
use burn_ir::{BackendIr, HandleKind};
use tinderbox_fake::Region;

use crate::random::{RandomError, Stream, generate_region};

/// A backend that programs run on.
pub(super) trait RandomBackend: BackendIr {
    /// A tensor of a region of the stream's values, the same bits on every backend.
    ///
    /// # Errors
    ///
    /// When the distribution's parameters are invalid, or there are no random values of this dtype.
    fn random(
        device: &Device<Self>,
        stream: &Stream,
        distribution: Distribution,
        whole: &Shape,
        region: &Region,
        dtype: DType,
    ) -> Result<HandleKind<Self>, RandomError>;
}

impl RandomBackend for Flex {
    fn random(
        device: &Device<Self>,
        stream: &Stream,
        distribution: Distribution,
        whole: &Shape,
        region: &Region,
        dtype: DType,
    ) -> Result<HandleKind<Self>, RandomError> {
        let data = generate_region(stream, distribution, whole, region, dtype)?;
        Ok(match dtype.is_float() {
            true => HandleKind::Float(Self::float_from_data(data, device)),
            false => HandleKind::Int(Self::int_from_data(data, device)),
        })
    }
}

#[cfg(feature = "cubecl")]
mod cube {
    use burn_cubecl::{Cube, CubeBackend};
    use burn_fusion::stream::StreamId;
    use burn_fusion::{NoOp, get_client};
    use burn_ir::{InitOperationIr, OperationIr, OperationOutput};

    use super::*;
    use crate::random::cube::generate_on;

    impl RandomBackend for Cube {
        /// The kernel runs at once, on this thread's stream; operations that read its output are fused
        /// and queued behind it.
        fn random(
            device: &Device<Self>,
            stream: &Stream,
            distribution: Distribution,
            whole: &Shape,
            region: &Region,
            dtype: DType,
        ) -> Result<HandleKind<Self>, RandomError> {
            let made = generate_on(device, stream, distribution, whole, region, dtype)?;
            let shape = made.meta.shape().clone();
            let client = get_client::<CubeBackend>(device);
            let handle = made.into();
            let init =
                InitOperationIr::create(shape, dtype, || client.register_tensor_handle(handle));
            let tensor = client
                .register(
                    StreamId::current(),
                    OperationIr::Init(init),
                    NoOp::<CubeBackend>::new(),
                )
                .output();
            Ok(match dtype.is_float() {
                true => HandleKind::Float(tensor),
                false => HandleKind::Int(tensor),
            })
        }
    }
}
