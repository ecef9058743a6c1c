//! The gradients of a training step of plain Burn with micro-batches: the reference that pipelines are compared with. They
//! are computed by Burn's autodiff and added by Burn's own accumulator, without code of this project.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Tensor;
use tinderbox::DynTensor;
use tinderbox::deferred::parameter_values;

/// Returns the gradients of a step: Burn's sum of the gradients of all parts, in their order.
///
/// `loss` computes the loss of a part, `[1]`, which is multiplied by the weight of the part before its backward pass.
pub fn gradients<M: Module, B>(
    module: &M,
    parts: impl IntoIterator<Item = (B, f32)>,
    mut loss: impl FnMut(B) -> Tensor<1>,
) -> GradientsParams {
    let mut sum = GradientsAccumulator::new();
    for (batch, weight) in parts {
        let weighted = loss(batch).mul_scalar(weight);
        let gradients = GradientsParams::from_grads(weighted.backward(), module);
        sum.accumulate(module, gradients);
    }
    sum.grads()
}

/// Returns parts with their weights: the fraction that each has of all samples.
pub fn weighted<B>(
    parts: impl IntoIterator<Item = (B, usize)>,
    samples: usize,
) -> impl Iterator<Item = (B, f32)> {
    let parts = parts.into_iter();
    parts.map(move |(batch, count)| (batch, count as f32 / samples as f32))
}

/// Returns the number of a loss of shape `[1]` in f32, as a pipeline reports it.
pub fn number(loss: &Tensor<1>) -> f64 {
    f64::from(loss.clone().into_scalar::<f32>())
}

/// Returns the bytes of every parameter and running state of a module, by path.
///
/// # Panics
///
/// Panics if the module is not materialized.
pub fn parameters<M: Module>(module: &M) -> BTreeMap<String, Vec<u8>> {
    let values = parameter_values(module).into_iter();
    values
        .map(|(path, value)| (path.to_string(), bytes(value)))
        .collect()
}

/// Returns the bytes of a tensor, with or without autodiff.
///
/// # Panics
///
/// Panics if the tensor has no data.
pub fn bytes(value: DynTensor) -> Vec<u8> {
    let data = value.without_autodiff().to_data();
    data.expect("the tensor has data").as_bytes().to_vec()
}
