//! Gives the streamed stages of a rank their values while they run.

use std::collections::BTreeSet;
use std::sync::Arc;

use tinderbox_deferred::{Source, Uncached};
use tinderbox_fake::DynTensor;
use tinderbox_planner::StreamState;

use super::pass::Pass;
use super::reader::{Reader, Sources};
use super::tiers::{HostTier, Spill};
use crate::kept::Kept;
use crate::runtime::caught::device_failed;
use crate::runtime::learning_rates::StepRates;
use crate::runtime::round::Round;
use crate::runtime::stage::{RankSetup, Stage, stage_of};
use crate::runtime::streamed::{Activation, Item, StageValues, StreamedSetup, UpdatedStage};
use crate::runtime::wire::compact;
use crate::schedule::StageIndex;
use crate::{ActionError, ActionResult};

/// The state of a rank whose stages are read when they are needed.
pub(crate) struct Streaming {
    setup: Arc<RankSetup>,
    streamed: Arc<StreamedSetup>,
    source: Arc<dyn Source>,
    spill: Option<Arc<Spill>>,
    tier: Arc<HostTier>,
    current: Option<(Arc<Pass>, Reader)>,
    /// The values that stay.
    kept: StageValues,
    /// The index of the visit that is next or runs.
    visit: usize,
    /// The stage that has its values.
    entered: Option<StageIndex>,
}

impl Streaming {
    pub(crate) fn new(
        setup: &Arc<RankSetup>,
        source: Arc<dyn Source>,
        streamed: &Arc<StreamedSetup>,
    ) -> Self {
        let dir = streamed.scratch_dir.clone();
        Self {
            source: match streamed.is_cached {
                true => source,
                false => Arc::new(Uncached(source)),
            },
            tier: Arc::default(),
            spill: dir.map(|dir| Arc::new(Spill::new(dir))),
            streamed: streamed.clone(),
            setup: setup.clone(),
            current: None,
            kept: StageValues::default(),
            visit: 0,
            entered: None,
        }
    }

    /// Prepares a pass. If it is the pass of the last call and changes no values, reading continues where it was.
    pub(crate) fn begin(&mut self, pass: &Arc<Pass>) -> ActionResult {
        if let Some((last, _)) = &self.current
            && Arc::ptr_eq(last, pass)
            && !pass.is_training
        {
            return Ok(());
        }
        // Drops the values that were read ahead.
        self.current = None;
        if let Some(spill) = &self.spill {
            spill.clear();
        }
        let in_memory = self.in_memory(pass);
        let state = match pass.is_training {
            true => StreamState::of_one_pass(pass.plan.clone(), &in_memory),
            false => StreamState::new(pass.plan.clone(), &in_memory),
        };
        let kept: BTreeSet<Item> = state.kept().iter().map(|item| pass.items[*item]).collect();
        let StageValues { parameters, states } = &mut self.kept;
        parameters.retain(|at, _| kept.contains(&Item::Parameter(*at)));
        states.retain(|at, _| kept.contains(&Item::State(*at)));
        self.visit = 0;
        let is_changed = |position: usize| {
            let trained = self.streamed.trained.iter();
            let mut states = trained.filter_map(|stage| stage.get(&position));
            pass.is_training && states.any(Option::is_some)
        };
        let host_bytes = self.streamed.options.host_bytes;
        if host_bytes > 0 {
            let chosen = pass.host_parameters(host_bytes, is_changed);
            self.tier.keep(chosen, &pass.dtypes);
        }
        let store = self.streamed.options.store.as_ref();
        let sources = Sources {
            parameters: self.source.clone(),
            states: store.and_then(|store| store.optimizer()),
            spill: self.spill.clone(),
            tier: self.tier.clone(),
            is_cached: self.streamed.is_cached,
        };
        let reader = Reader::start(pass, state, &self.setup, sources)?;
        self.current = Some((pass.clone(), reader));
        Ok(())
    }

    /// The values of a pass that stay from the pass before.
    fn in_memory(&self, pass: &Pass) -> BTreeSet<usize> {
        let values = pass.items.iter().enumerate();
        let StageValues { parameters, states } = &self.kept;
        let in_memory = values.filter(|(_, item)| match item {
            Item::Parameter(at) => parameters
                .get(at)
                .is_some_and(|value| value.dtype() == pass.dtypes[at]),
            Item::State(at) => states.contains_key(at),
            Item::Activation(_) => false,
        });
        in_memory.map(|(item, _)| item).collect()
    }

    fn current(&self) -> &(Arc<Pass>, Reader) {
        self.current.as_ref().expect("a pass was begun")
    }

    /// Gives a stage its parameters and activations, after the values of the previous stage were removed.
    pub(crate) fn enter(
        &mut self,
        (stages, stage): (&mut [Stage], StageIndex),
        round: &Round,
        activations: &mut Kept<DynTensor>,
    ) -> ActionResult {
        if self.entered == Some(stage) {
            return Ok(());
        }
        self.leave(stages, round, activations)?;
        let values = self.wait_for(stage, activations)?;
        let rows = (!self.current().0.is_training).then(|| self.source.clone());
        stage_of(stages, stage).attach(values, rows)?;
        self.entered = Some(stage);
        Ok(())
    }

    /// Waits for the values of a stage.
    fn wait_for(
        &mut self,
        stage: StageIndex,
        activations: &mut Kept<DynTensor>,
    ) -> ActionResult<StageValues> {
        let (pass, reader) = self.current.as_ref().expect("a pass was begun");
        debug_assert_eq!(
            pass.visits[self.visit].stage, stage,
            "stages run in the order of the pass"
        );
        let mut values = StageValues::default();
        for item in pass.plan.items_of(self.visit) {
            values.move_from(&mut self.kept, pass.items[*item]);
        }
        while let Some(read) = reader.next()? {
            values.parameters.extend(read.values.parameters);
            values.states.extend(read.values.states);
            for ((k, id), value, holders) in read.activations {
                activations.put_all(k, id, &value, holders);
            }
        }
        Ok(values)
    }

    /// Removes the values of the stage that has run, except values that stay in memory. The parameters that it has updated are
    /// written before.
    pub(crate) fn leave(
        &mut self,
        stages: &mut [Stage],
        round: &Round,
        activations: &mut Kept<DynTensor>,
    ) -> ActionResult {
        let Some(index) = self.entered.take() else {
            return Ok(());
        };
        let all: Vec<StageIndex> = stages.iter().map(Stage::index).collect();
        let stage = stage_of(stages, index);
        let is_update = self.current().0.visits[self.visit].is_update;
        if is_update
            && let Some(store) = &self.streamed.options.store
            && let Some(rates) = &round.rates
            && let Some(updated) = self.updated(stage, rates)?
        {
            // The number of completed steps.
            let written = store.write(u64::from(round.step) + 1, updated);
            written.map_err(|source| ActionError::Write { source })?;
        }
        let values = stage.detach();
        for ((k, id), stays) in self.activations() {
            // After its last use, no stage keeps it.
            let removed = activations.remove_all(k, id, all.iter().copied());
            let Some((value, holders)) = removed else {
                continue;
            };
            if stays {
                // The memory of activations that were written is free then.
                let value = compact(value);
                let value = value.map_err(|error| device_failed(&self.setup.device, error))?;
                activations.put_all(k, id, &value, holders);
            } else {
                let spill = self.spill.as_ref();
                let spill = spill.expect("activations are values of a pass if they can be written");
                spill.put((k, id), value, holders)?;
            }
        }
        self.keep(values);
        Ok(())
    }

    /// The values of an updated stage that a step may have changed; `None` if it has none.
    fn updated(&self, stage: &Stage, rates: &StepRates) -> ActionResult<Option<UpdatedStage>> {
        let of_stage = self.streamed.trained[stage.index().index()].iter();
        let changed = of_stage.filter(|(_, state)| state.is_some());
        let changed: BTreeSet<usize> = changed.map(|(position, _)| *position).collect();
        if changed.is_empty() {
            return Ok(None);
        }
        let optimizer = stage.optimizer_snapshot().to_host();
        let optimizer = optimizer.map_err(|error| device_failed(stage.device(), error))?;
        let path = |position: usize| &self.setup.table.iter().as_slice()[position].path;
        let own = changed.iter();
        let own = own.filter_map(|position| rates.others.get_key_value(path(*position)));
        let others = own.map(|(path, rate)| (path.clone(), *rate)).collect();
        let held = stage.held.values();
        let held = held.filter(|(position, _)| changed.contains(position));
        Ok(Some(UpdatedStage {
            stage: stage.index(),
            parameters: held.map(|(at, value)| (path(at).clone(), value)).collect(),
            optimizer,
            rates: StepRates {
                base: rates.base,
                others,
            },
        }))
    }

    /// The activations of the stage that has run, and whether each stays: first the ones that do not stay. Empty if all stay.
    /// The ones that stay may be views of the same memory.
    fn activations(&self) -> Vec<(Activation, bool)> {
        let (pass, _) = self.current();
        let items = pass.plan.items_of(self.visit).iter();
        let items = items.zip(pass.plan.stays(self.visit));
        let activations = items.filter_map(|(item, stays)| match pass.items[*item] {
            Item::Activation(activation) => Some((activation, *stays)),
            _ => None,
        });
        let mut activations: Vec<(Activation, bool)> = activations.collect();
        activations.sort_by_key(|(_, stays)| *stays);
        if activations.first().is_some_and(|(_, stays)| *stays) {
            activations.clear();
        }
        activations
    }

    /// Keeps the values of the stage that has run and that stay, and drops the others.
    fn keep(&mut self, mut values: StageValues) {
        let (pass, reader) = self.current.as_ref().expect("a pass was begun");
        let items = pass.plan.items_of(self.visit).iter();
        for (item, stays) in items.zip(pass.plan.stays(self.visit)) {
            if *stays {
                self.kept.move_from(&mut values, pass.items[*item]);
            }
        }
        drop(values);
        self.visit = (self.visit + 1) % pass.visits.len();
        if self.visit == 0
            && let Some(spill) = &self.spill
        {
            spill.clear();
        }
        reader.finish();
    }
}
