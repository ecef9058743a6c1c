//! Clipping of gradients before the update.

use std::collections::BTreeMap;

use burn::optim::grad_clipping::GradientClippingConfig;
use burn::tensor::{DType, Device, Tensor, TensorData};
use tinderbox_deferred::ParameterTable;
use tinderbox_fake::DynTensor;

use crate::ActionError;
use crate::cut::Layout;
use crate::schedule::StageIndex;

/// How gradients are clipped before the update.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Clipping {
    /// Each gradient by itself, as Burn's optimizers do it.
    Each(GradientClippingConfig),
    /// All gradients by one factor, so that the norm of all of them together is at most this, which
    /// must be positive.
    ///
    /// Every rank then waits for all others before its update. Per gradient, the squares of each 2^20
    /// elements are summed in f32; these sums are added in f64, gradient by gradient in the order of
    /// the parameter table, so that the norm has the same bits under every plan and schedule. The
    /// factor is `max / (norm + 1e-6)` where that is less than one, as PyTorch's `clip_grad_norm_` has
    /// it.
    GlobalNorm(f64),
}

/// Elements whose squares one sum adds up. Burn's CPU backend sums so many in one order; from 4 Mi on
/// its order depends on the threads.
const SUM_ELEMENTS: usize = 1 << 20;

/// What keeps the factor finite.
const EPSILON: f64 = 1e-6;

/// A float tensor under a type that does not fix its rank: for operations that do not depend on it.
fn any_rank(tensor: DynTensor) -> Tensor<1> {
    Tensor::from_dispatch(tensor.into())
}

/// The sum of the squares of all elements.
pub(super) fn squared_norm(gradient: DynTensor) -> Result<f64, ActionError> {
    let elements = gradient.shape().num_elements();
    let flat = any_rank(gradient.cast_float(DType::F32)).reshape([elements]);
    let starts = (0..elements).step_by(SUM_ELEMENTS);
    let sums = starts.map(|start| {
        let part = flat
            .clone()
            .slice(start..elements.min(start + SUM_ELEMENTS));
        let sum = DynTensor::from(part.square().sum()).to_data()?;
        Ok(sum.iter::<f64>().next().unwrap_or(0.0))
    });
    sums.sum()
}

/// What is done to all gradients before the update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    /// Nothing.
    Keep,
    /// They are multiplied with this.
    Scale(f64),
    /// They are not finite, and none is used.
    Skip,
}

impl Change {
    /// For gradients whose norm, with the factor on the loss divided out, is this.
    pub(super) fn of(norm: f64, max: Option<f64>, loss_scale: Option<f64>) -> Self {
        if loss_scale.is_some() && !norm.is_finite() {
            return Self::Skip;
        }
        // A norm that is not a number makes all gradients so, as it does in PyTorch: nothing is hidden.
        let clip = max.map(|max| max / (norm + EPSILON));
        let clip = clip.filter(|factor| factor.is_nan() || *factor < 1.0);
        match (clip, loss_scale) {
            (None, None) => Self::Keep,
            (clip, scale) => Self::Scale(clip.unwrap_or(1.0) / scale.unwrap_or(1.0)),
        }
    }
}

/// A gradient times a factor.
pub(super) fn scaled(gradient: DynTensor, factor: f64) -> DynTensor {
    any_rank(gradient).mul_scalar(factor as f32).into()
}

/// A gradient clipped by itself.
pub(super) fn each(
    config: &GradientClippingConfig,
    gradient: DynTensor,
) -> Result<DynTensor, ActionError> {
    let clipping = config.init();
    macro_rules! of_rank {
        ($($rank:literal)*) => {
            match gradient.shape().num_dims() {
                $($rank => clipping.clip_gradient(gradient.typed::<$rank, burn::tensor::Float>()?).into(),)*
                _ => return Err(ActionError::UnknownAction),
            }
        };
    }
    Ok(of_rank!(1 2 3 4 5 6 7 8))
}

/// Squared norms as they travel between ranks: on the host, whatever the devices of the ranks.
pub(super) fn to_message(norms: &[f64]) -> DynTensor {
    let data = TensorData::new(norms.to_vec(), [norms.len()]);
    DynTensor::from_data(data, &Device::flex())
}

/// The order in which squared norms are added: stage and place of every parameter, as the table has
/// them.
pub(super) fn table_order(table: &ParameterTable, layout: &Layout) -> Vec<(StageIndex, usize)> {
    // A stage holds its parameters in the order of the table too, whatever the plan's.
    let mut held: BTreeMap<StageIndex, usize> = BTreeMap::new();
    let distinct = table.iter().enumerate();
    let distinct = distinct.filter(|(_, parameter)| parameter.clone_of.is_none());
    let places = distinct.map(|(position, _)| {
        let stage = layout.owner(position);
        let place = held.entry(stage).or_default();
        *place += 1;
        (stage, *place - 1)
    });
    places.collect()
}
