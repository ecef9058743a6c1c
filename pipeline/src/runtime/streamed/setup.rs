//! What a rank with streamed stages needs to know.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::Device;
use tinderbox_deferred::{ParameterTable, available_bytes, process_bytes};
use tinderbox_fake::is_host;
use tinderbox_planner::MemoryBudget;

use super::values::StageStore;
use crate::RestoreError;
use crate::cut::Layout;
use crate::runtime::optimizer::bytes_per_element;
use crate::runtime::settings::Settings;
use crate::schedule::StageIndex;
use crate::trace::JointGraph;

/// The kind of a [`PipelineBuilder`](crate::PipelineBuilder) whose stages have their parameters only while they run, with the
/// settings that only this kind has.
#[derive(Clone, Default, derive_more::Debug)]
#[debug("OnDemand {{ budget: {budget:?}, host_bytes: {host_bytes}, .. }}")]
pub struct OnDemand {
    /// The memory limit.
    pub(crate) budget: MemoryBudget,
    /// The bytes of parameters that may stay in the memory of the host.
    pub(crate) host_bytes: u64,
    /// Where values are between steps, if it trains.
    pub(crate) store: Option<Arc<dyn StageStore>>,
}

/// The parameters that each stage owns, by position in the table, each with the bytes of the optimizer's state for it if a step may
/// change it.
pub(crate) type Trained = Vec<BTreeMap<usize, Option<u64>>>;

/// What a rank with streamed stages needs to know.
pub(crate) struct StreamedSetup {
    pub(crate) options: OnDemand,
    pub(crate) trained: Trained,
    /// Whether the system's cache of files can hold all values.
    pub(crate) is_cached: bool,
    /// Where activations may be written.
    pub(crate) scratch_dir: Option<PathBuf>,
    pub(crate) device: Device,
}

impl StreamedSetup {
    pub(crate) fn new(
        options: &OnDemand,
        (table, device): (&ParameterTable, &Device),
        (layout, traced): (&Layout, &JointGraph),
        settings: &Settings,
    ) -> Self {
        let store = options.store.as_ref();
        let parameters = table.iter().as_slice();
        let optimizers = settings.optimizers.as_ref().filter(|_| store.is_some());
        let bytes_of = |position: usize| {
            let parameter = &parameters[position];
            let optimizer = &optimizers?.of(&parameter.path).optimizer;
            if traced.updates().contains_key(&position) {
                return Some(0);
            }
            parameter.trainable.then(|| {
                let (rank, dtype) = (parameter.shape.len(), parameter.dtype);
                let each = bytes_per_element(&**optimizer, rank, dtype);
                each * parameter.elements()
            })
        };
        let of_stage = |stage: StageIndex| {
            let owned = layout.owned(stage).iter();
            owned.map(|at| (*at, bytes_of(*at))).collect()
        };
        let trained: Trained = layout.stages().map(of_stage).collect();
        let parameters = table.distinct().map(|parameter| parameter.bytes);
        let states = trained.iter().flat_map(BTreeMap::values).flatten();
        let bytes = parameters.chain(states.copied()).sum();
        Self {
            is_cached: is_cached(bytes, options.budget, (device, options.host_bytes)),
            options: options.clone(),
            scratch_dir: store.and_then(|store| store.scratch_dir()),
            trained,
            device: device.clone(),
        }
    }

    /// Checks that the optimizers can continue with the states that the store has. Reads no values.
    pub(crate) fn check_states(
        &self,
        table: &ParameterTable,
        settings: &Settings,
    ) -> Result<(), RestoreError> {
        let store = self.options.store.as_ref();
        let states = store.and_then(|store| store.optimizer());
        let (Some(states), Some(optimizers)) = (states, &settings.optimizers) else {
            return Ok(());
        };
        let trained = self.trained.iter().flatten();
        for (position, _) in trained.filter(|(_, state)| state.is_some()) {
            let parameter = &table.iter().as_slice()[*position];
            let (path, shape) = (&parameter.path, &parameter.shape);
            let (rule, fields) = (optimizers.of(path), states.fields(path));
            rule.check(path, shape, &fields, &self.device)?;
        }
        Ok(())
    }
}

/// Returns whether the system's cache of files can hold a model of so many bytes beside what the limits of the device and of the
/// host allow. Of files that are read in turn, a cache that is a little too small holds none.
fn is_cached(model_bytes: u64, budget: MemoryBudget, (device, host_bytes): (&Device, u64)) -> bool {
    let Some(available) = available_bytes(&Device::flex()) else {
        return true;
    };
    let available = available.saturating_sub(host_bytes);
    let left = match budget {
        _ if !is_host(device) => available,
        MemoryBudget::Available => available / 10,
        MemoryBudget::Values(bytes) => available.saturating_sub(bytes),
        MemoryBudget::Bytes(bytes) => {
            (available + process_bytes().unwrap_or(0)).saturating_sub(bytes)
        }
    };
    model_bytes <= left
}
