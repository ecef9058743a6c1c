//! What a rank with streamed stages needs to know, from the settings of a builder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;
use tinderbox_deferred::ParameterTable;
use tinderbox_fake::DeviceLabel;
use tinderbox_planner::MemoryBudget;

use super::pass::{Trained, is_cached};
use super::store::{StageStore, StreamedTraining, UpdatedStage};
use crate::batch::Batch;
use crate::cut::Layout;
use crate::runtime::builder::PipelineBuilder;
use crate::runtime::learning_rates::LearningRates;
use crate::runtime::optimizer::OptimizerState;
use crate::runtime::pipeline::Pipeline;
use crate::runtime::settings::Settings;
use crate::runtime::stage::Stage;
use crate::schedule::{RankIndex, StageIndex};
use crate::trace::JointGraph;
use crate::{ActionError, PipelineError, RestoreError, StreamedError};

/// What a rank with streamed stages needs to know.
pub(in crate::runtime) struct StreamedSetup {
    /// Where values are between steps, if it trains.
    pub(in crate::runtime) store: Option<Arc<dyn StageStore>>,
    pub(super) trained: Trained,
    /// Whether the system's cache of files can hold all values.
    pub(super) is_cached: bool,
    /// The bytes of parameters that may stay in the memory of the host.
    pub(super) host_bytes: u64,
    /// Where activations may be written.
    pub(super) scratch_dir: Option<PathBuf>,
    device: Device,
}

impl StreamedSetup {
    pub(in crate::runtime) fn of<M: Module + Sync + 'static, B: Batch>(
        builder: &PipelineBuilder<M, B>,
        budget: MemoryBudget,
        layout: &Layout,
        traced: &JointGraph,
        settings: &Settings,
    ) -> Self {
        let (table, store) = (builder.model.parameters(), builder.store.clone());
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
                let each = OptimizerState::bytes_per_element(&**optimizer, rank, dtype);
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
            is_cached: is_cached(bytes, budget, (&builder.devices[0], builder.host_bytes)),
            host_bytes: builder.host_bytes,
            scratch_dir: store.as_ref().and_then(|store| store.scratch_dir()),
            trained,
            store,
            device: builder.devices[0].clone(),
        }
    }

    /// Begins or continues the training of a pipeline with its store, if it has one.
    pub(super) fn start<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
    ) -> Result<(), PipelineError> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        let table = pipeline.model.parameters().clone();
        let stages = self.trained.iter().enumerate();
        let trained = stages.map(|(stage, parameters)| {
            let changed = parameters.iter().filter(|(_, state)| state.is_some());
            let paths =
                changed.map(|(position, _)| table.iter().as_slice()[*position].path.clone());
            (StageIndex::new(stage), paths.collect::<Vec<_>>())
        });
        let started = store.start(&StreamedTraining {
            seed: pipeline.settings.seed,
            plan: &pipeline.plan,
            micro_batches: pipeline.micro_batches,
            settings: pipeline.run_settings(),
            trained: trained.filter(|(_, paths)| !paths.is_empty()).collect(),
            keeps_state: pipeline.keeps_optimizer_state(),
        });
        started.map_err(|source| StreamedError::Store { source })?;
        let checked = self.check_states(&table, &pipeline.settings);
        checked.map_err(|source| PipelineError::Restore {
            rank: RankIndex::new(0),
            source,
        })?;
        pipeline.resume_at(store.step());
        Ok(())
    }

    /// Checks that the optimizers can continue with the states that the store has. Reads no values.
    fn check_states(
        &self,
        table: &ParameterTable,
        settings: &Settings,
    ) -> Result<(), RestoreError> {
        let states = self.store.as_ref().and_then(|store| store.optimizer());
        let (Some(states), Some(optimizers)) = (states, &settings.optimizers) else {
            return Ok(());
        };
        for (position, _) in self
            .trained
            .iter()
            .flatten()
            .filter(|(_, state)| state.is_some())
        {
            let parameter = &table.iter().as_slice()[*position];
            let rule = optimizers.of(&parameter.path).clone();
            let place = (0, &parameter.path, &*parameter.shape);
            let fields = states.fields(&parameter.path);
            OptimizerState::new(vec![rule]).check(place, &fields, &self.device)?;
        }
        Ok(())
    }

    /// What a step may have changed of a stage that was updated; `None` if that is nothing.
    pub(in crate::runtime) fn updated(
        &self,
        table: &ParameterTable,
        stage: &Stage,
        rates: &LearningRates,
    ) -> Result<Option<UpdatedStage>, ActionError> {
        let of_stage = self.trained[stage.index().index()].iter();
        let changed = of_stage.filter(|(_, state)| state.is_some());
        let changed: BTreeSet<usize> = changed.map(|(position, _)| *position).collect();
        if changed.is_empty() {
            return Ok(None);
        }
        let optimizer = stage.optimizer_snapshot().to_host();
        let optimizer = optimizer.map_err(|source| ActionError::Device {
            device: DeviceLabel::of(stage.device()),
            source: Box::new(source),
        })?;
        let path = |position: usize| &table.iter().as_slice()[position].path;
        let rates = rates.of_all(changed.iter().map(|position| path(*position)));
        let held = stage
            .held()
            .filter(|(position, _)| changed.contains(position));
        Ok(Some(UpdatedStage {
            stage: stage.index(),
            parameters: held.map(|(at, value)| (path(at).clone(), value)).collect(),
            optimizer,
            rates,
        }))
    }
}
