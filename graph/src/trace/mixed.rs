//! Mixed precision: a 16-bit forward over parameters in their own dtype.

use burn::module::Module;
use burn::tensor::FloatDType;
use tinderbox_deferred::Deferred;
use tinderbox_fake::Mode;

use super::{Outputs, Trace, Traceable};
use crate::TraceError;
use crate::batch::Batch;

/// A model to be traced in mixed precision.
///
/// The forward is recorded as if the model had been constructed on a device whose default float dtype
/// is the 16-bit one: its parameters, its activations and the tensors that it creates have that dtype,
/// and the float tensors of a batch are cast where they are read. The f32 parameters of the ranks are
/// cast once per step; gradients are cast back and added in f32, and the optimizer uses f32 only.
///
/// Tensors that the model or its forward creates with an explicit dtype keep it. A computed tensor
/// field, such as a table of positions, is computed in 16 bits, unless the model requests more.
///
/// The objective is `loss * weight` in f32. A 16-bit loss has three digits (bf16) or four (f16); for
/// more, cast the scores before the loss, as in `loss.forward(logits.cast(DType::F32), targets)`, which
/// costs nothing in an f32 forward.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{DType, Device, Tensor};
/// use tinderbox_deferred::Deferred;
/// use tinderbox_graph::{MixedPrecision, Outputs, Traceable};
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
    /// Uses bf16: the range of f32, and eight bits of precision.
    pub fn bf16(model: &'a Deferred<M>) -> Self {
        Self {
            model,
            compute: FloatDType::BF16,
        }
    }

    /// Uses f16: eleven bits of precision, and a range in which small gradients underflow, so a
    /// pipeline scales the loss (`LossScale`).
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
