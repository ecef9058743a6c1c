//! Mixed precision: a forward in 16 bits over parameters that stay as they are.

use burn::module::Module;
use burn::tensor::FloatDType;
use tinderbox_deferred::Deferred;
use tinderbox_fake::Mode;

use super::{Outputs, Trace, Traceable};
use crate::TraceError;
use crate::batch::Batch;

/// A model to be traced in mixed precision.
///
/// The forward is recorded as if the model had been made on a device whose default float type is the
/// 16-bit one, so its parameters, its activations and what the forward itself makes have that type, and so
/// have the float tensors of a batch, which are cast where they are read. The f32 parameters that ranks hold
/// are cast once per step; gradients are cast back and added in f32, and the optimizer sees f32 alone.
///
/// What the model or its forward makes in a type that it names itself keeps that type. A tensor field that is
/// computed, such as a table of positions, is computed in 16 bits, unless the model asks for more.
///
/// The objective is `loss * weight` in f32. A loss in 16 bits has three digits (bf16) or four (f16): where more
/// are wanted, cast the scores before the loss, as in `loss.forward(logits.cast(DType::F32), targets)`, which
/// costs nothing in a forward of f32.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{DType, Device, Tensor};
/// use tinderbox_deferred::Deferred;
/// use tinderbox_pipeline::{MixedPrecision, Outputs, Traceable};
///
/// let model = Deferred::new(|device| LinearConfig::new(8, 8).init(device))?;
/// let example = Tensor::<2>::zeros([2, 8], &Device::flex());
/// let trace = MixedPrecision::bf16(&model).trace(&example, |net: &Linear, x| {
///     Outputs::loss(net.forward(x).cast(DType::F32).mean())
/// })?;
/// assert_eq!(trace.parameters().bytes(), 4 * (8 * 8 + 8));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MixedPrecision<'a, M> {
    model: &'a Deferred<M>,
    compute: FloatDType,
}

impl<'a, M> MixedPrecision<'a, M> {
    /// In bf16: the range of f32, and eight bits of precision.
    pub fn bf16(model: &'a Deferred<M>) -> Self {
        Self {
            model,
            compute: FloatDType::BF16,
        }
    }

    /// In f16: eleven bits of precision, and a range that small gradients fall out of, so a pipeline
    /// [scales the loss](crate::LossScale).
    pub fn f16(model: &'a Deferred<M>) -> Self {
        Self {
            model,
            compute: FloatDType::F16,
        }
    }
}

impl<M: Module + Sync + 'static> Traceable<M> for MixedPrecision<'_, M> {
    fn trace_in<B: Batch>(
        &self,
        mode: Mode,
        example: &B,
        forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
    ) -> Result<Trace<B>, TraceError> {
        Trace::new(self.model, example, mode, Some(self.compute), forward)
    }
}
