//! An average of a parameter's values over steps, kept with the state of its optimizer.

use std::sync::Arc;

use burn::optim::{DynOptimizer, DynState, LearningRate, StateSink, StateSource};
use burn::tensor::{DType, Device, kind::BridgeTensor};
use tinderbox_fake::DynTensor;

use super::probe::keeps_state;
use crate::runtime::clip::any_rank;

/// The name of the average in a saved state.
const AVERAGE: &str = "average";
/// The name under which the state of the optimizer itself is saved.
const INNER: &str = "of_optimizer";

/// An optimizer that keeps an exponential moving average of the values that it returns.
#[derive(Clone, derive_more::Debug)]
#[debug("Averaging {{ decay: {decay:?}, .. }}")]
pub(super) struct Averaging {
    pub(super) inner: Arc<dyn DynOptimizer>,
    pub(super) decay: f64,
}

/// The state of an [`Averaging`].
#[derive(Clone)]
pub(super) struct AveragingState {
    inner: Option<DynState>,
    average: DynTensor,
}

/// The average of a state of an [`Averaging`].
pub(super) fn average_of(state: &DynState) -> &DynTensor {
    &state.downcast_ref::<AveragingState>().average
}

/// Advances the average of a state of an [`Averaging`] by a step that did not update the parameter.
pub(super) fn with_value(state: DynState, value: DynTensor, decay: f64) -> DynState {
    let rank = state.rank();
    let state = state.downcast::<AveragingState>();
    let average = advanced(state.average, value, decay);
    DynState::create(AveragingState { average, ..state }, rank)
}

/// Casts a value to the dtype of its average. In 16 bits an average would lose the additions of a step.
fn wide(value: DynTensor) -> DynTensor {
    match value.dtype() {
        DType::F64 => value,
        _ => value.cast_float(DType::F32),
    }
}

fn advanced(average: DynTensor, value: DynTensor, decay: f64) -> DynTensor {
    let kept = any_rank(average).mul_scalar(decay);
    let new = any_rank(wide(value)).mul_scalar(1.0 - decay);
    DynTensor::from(kept + new)
}

impl DynOptimizer for Averaging {
    fn step_dyn(
        &self,
        rank: usize,
        lr: LearningRate,
        tensor: BridgeTensor,
        grad: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        let tensor = DynTensor::from(tensor);
        let (inner, before) = match state.map(DynState::downcast::<AveragingState>) {
            Some(state) => (state.inner, state.average),
            // An average begins at the value before the first step.
            None => (None, wide(tensor.clone())),
        };
        let bridged = any_rank(tensor).into_bridge();
        let (updated, inner) = self.inner.step_dyn(rank, lr, bridged, grad, inner);
        let updated = DynTensor::from(updated);
        let average = advanced(before, updated.clone(), self.decay);
        let state = DynState::create(AveragingState { inner, average }, rank);
        (any_rank(updated).into_bridge(), Some(state))
    }

    fn to_device_dyn(&self, state: DynState, device: &Device) -> DynState {
        let rank = state.rank();
        let state = state.downcast::<AveragingState>();
        let inner = state.inner;
        let inner = inner.map(|inner| self.inner.to_device_dyn(inner, device));
        let average = any_rank(state.average).to_device(device).into();
        DynState::create(AveragingState { inner, average }, rank)
    }

    fn state_flatten(&self, prefix: &str, state: &DynState, out: &mut StateSink) {
        let state = state.downcast_ref::<AveragingState>();
        let data = any_rank(state.average.clone()).into_data();
        out.push_tensor(prefix, AVERAGE, data);
        if let Some(inner) = &state.inner {
            self.inner
                .state_flatten(&format!("{prefix}.{INNER}"), inner, out);
        }
    }

    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        src: &mut StateSource,
        device: &Device,
    ) -> Option<DynState> {
        let average = src.take_tensor(prefix, AVERAGE)?;
        let inner = format!("{prefix}.{INNER}");
        let inner = match src.has_under(&inner) {
            true => Some(self.inner.state_unflatten(rank, &inner, src, device)?),
            // A parameter with an average has stepped, so the saved state is of an optimizer that keeps no state.
            false if keeps_state(&*self.inner, rank) => return None,
            false => None,
        };
        let average = DynTensor::from_data(average, device);
        Some(DynState::create(AveragingState { inner, average }, rank))
    }
}
