//! One stage on its rank: parameters, gradients, optimizer and programs.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use burn::tensor::{DType, Device};
use tinderbox_deferred::{
    Executable, Executor, MaterializeError, MaterializeOptions, Observer, ParameterPath,
    PartialModule, Reload, RunContext, Source, materialize_parameters,
};
use tinderbox_fake::DynTensor;

use super::clip::SquareSums;
use super::indices::IndexPlaces;
use super::optimizer::{OptimizerSnapshot, OptimizerState};
use super::rank::RankSetup;
use super::restore::SavedOptimizer;
use super::step::{Rates, check_length};
use super::weights::LossWeight;
use crate::certify::Certificate;
use crate::cut::{Layout, StagePrograms};
use crate::schedule::{Compute, StageIndex};
use crate::{ActionError, RestoreError};

/// A joint graph cut into the programs of every stage, shared by all ranks.
#[derive(Debug)]
pub(crate) struct CutProgram {
    /// Its number among the programs of the pipeline.
    pub(crate) number: u64,
    pub(crate) stages: Vec<StagePrograms>,
    /// The weighting of the loss of a micro-batch.
    pub(super) loss_weight: LossWeight,
    /// The places of its operations that read by index.
    pub(crate) indices: IndexPlaces,
    /// The proven outputs of its programs.
    pub(crate) certificate: Certificate,
}

/// The programs of one stage on its device, each loaded at its first run, with the inputs that are the
/// same in every run.
#[derive(Clone, Debug)]
struct LoadedPrograms {
    executables: [Option<Executable>; Compute::ALL.len()],
    constants: Arc<[DynTensor]>,
}

/// The container and the index of a parameter of the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Owned(usize),
    Replica(usize),
}

/// The parameters, gradients and optimizer of one stage.
#[derive(Debug)]
pub struct Stage {
    index: StageIndex,
    setup: Arc<RankSetup>,
    owned: PartialModule,
    replicas: PartialModule,
    places: HashMap<usize, Place>,
    optimizer: Option<OptimizerState>,
    gradients: Vec<Option<DynTensor>>,
    /// Gradients of the last step, if the settings keep them; they need additional memory of their
    /// size.
    kept_gradients: Option<Vec<Option<DynTensor>>>,
    /// Parameters in the dtype in which programs read them, if it is not their own, from the first
    /// program that reads one to the next update.
    cast: HashMap<Place, DynTensor>,
    /// By the number of the cut.
    loaded: BTreeMap<u64, LoadedPrograms>,
}

impl Stage {
    /// Materializes only the parameters that the stage holds.
    pub(super) fn new(
        index: StageIndex,
        layout: &Layout,
        setup: &Arc<RankSetup>,
        source: &dyn Source,
    ) -> Result<Self, MaterializeError> {
        let (table, settings) = (&setup.table, &setup.settings);
        let hold = |paths: &[ParameterPath]| {
            let paths: BTreeSet<&ParameterPath> = paths.iter().collect();
            materialize_parameters(
                table,
                &setup.device,
                source,
                MaterializeOptions::only(|p| paths.contains(&p.path))
                    .memory(settings.memory)
                    .observer(&*setup.progress),
            )
        };
        let owned = hold(layout.owned(index))?;
        let replicas = hold(layout.replicas(index))?;
        let places = table
            .iter()
            .enumerate()
            .filter_map(|(position, parameter)| {
                let path = parameter.original();
                let owned = owned.position(path).map(Place::Owned);
                let place = owned.or_else(|| replicas.position(path).map(Place::Replica));
                Some((position, place?))
            })
            .collect();
        let count = owned.len();
        let optimizer = settings.optimizer.clone();
        Ok(Self {
            index,
            setup: setup.clone(),
            owned,
            replicas,
            places,
            optimizer: optimizer.map(|optimizer| OptimizerState::new(optimizer, count)),
            gradients: vec![None; count],
            kept_gradients: settings.keep_gradients.then(|| vec![None; count]),
            cast: HashMap::new(),
            loaded: BTreeMap::new(),
        })
    }

    /// Returns its index in the plan.
    pub fn index(&self) -> StageIndex {
        self.index
    }

    /// Returns the parameters that it owns, as a Burn module under their original paths.
    pub fn parameters(&self) -> &PartialModule {
        &self.owned
    }

    /// Returns its copies of parameters that other stages own.
    pub fn replicas(&self) -> &PartialModule {
        &self.replicas
    }

    /// Returns the bytes of all parameters that it holds, copies included.
    pub fn parameter_bytes(&self) -> u64 {
        self.owned.bytes() + self.replicas.bytes()
    }

    /// Returns the bytes of the copies of parameters in a second dtype, for a forward in mixed
    /// precision.
    pub fn cast_bytes(&self) -> u64 {
        self.cast.values().map(DynTensor::bytes).sum()
    }

    /// Returns the gradients of the last training step as passed to the optimizer, by path: summed over
    /// its micro-batches, and clipped if the pipeline clips. Empty unless the pipeline
    /// [keeps](crate::PipelineBuilder::keep_gradients) them, and after a skipped step.
    pub fn gradients(&self) -> impl Iterator<Item = (&ParameterPath, &DynTensor)> {
        let pairs = self.owned.paths().zip(self.kept_gradients.iter().flatten());
        pairs.filter_map(|(path, gradient)| Some((path, gradient.as_ref()?)))
    }

    /// Returns the current state of its optimizer without a copy: later steps do not change it.
    pub fn optimizer_snapshot(&self) -> OptimizerSnapshot {
        OptimizerSnapshot::new(
            self.optimizer.clone(),
            self.owned.paths().cloned().collect(),
        )
    }

    /// Returns an observer for progress reports of calls on the ranks: a call that reports may take any
    /// time, as described at [timeout](crate::PipelineBuilder::timeout).
    pub fn observer(&self) -> Arc<dyn Observer> {
        self.setup.progress.clone()
    }

    /// Checks that saved values fit. Reads no values and changes nothing.
    pub(super) fn check_restore(
        &self,
        source: &dyn Source,
        state: &dyn SavedOptimizer,
    ) -> Result<(), RestoreError> {
        let RankSetup { table, device, .. } = &*self.setup;
        for module in [&self.owned, &self.replicas] {
            let reload = Reload::new(table, module, device);
            reload.check(table, source, self.setup.settings.memory)?;
        }
        if let Some(optimizer) = &self.optimizer {
            for (path, value) in self.owned.values() {
                let rank = value.shape().num_dims();
                optimizer.check(path, rank, &state.fields(path), device)?;
            }
        }
        Ok(())
    }

    /// Replaces parameters and optimizer state, one after the other. After an error, some are new and
    /// others old.
    pub(super) fn restore(
        &mut self,
        source: &dyn Source,
        state: &dyn SavedOptimizer,
    ) -> Result<(), RestoreError> {
        self.cast.clear();
        self.drop_gradients();
        let setup = &*self.setup;
        for module in [&mut self.owned, &mut self.replicas] {
            let reload = Reload::new(&setup.table, module, &setup.device);
            reload.run(module, source, &*setup.progress)?;
        }
        if let Some(optimizer) = &mut self.optimizer {
            for (position, (path, value)) in self.owned.values().enumerate() {
                let parameter = (position, path, value.shape().num_dims());
                optimizer.restore(parameter, state, &setup.device, &*setup.progress)?;
            }
        }
        Ok(())
    }

    /// Returns its device.
    pub fn device(&self) -> &Device {
        &self.setup.device
    }

    /// Drops the programs of cuts that are no longer kept.
    pub(super) fn keep_loaded(&mut self, cuts: &BTreeSet<u64>) {
        self.loaded.retain(|number, _| cuts.contains(number));
    }

    /// Returns a program of this stage on its device, and its inputs that are the same in every run.
    pub(super) fn load(
        &mut self,
        cut: &CutProgram,
        compute: Compute,
    ) -> Result<(Executable, Arc<[DynTensor]>), ActionError> {
        let programs = &cut.stages[self.index.index()];
        let setup = &self.setup;
        let executor = || -> Result<Executor, ActionError> {
            let executor = Executor::new(&setup.device)?;
            Ok(executor.checking_indices(setup.settings.check_indices))
        };
        let loaded = match self.loaded.entry(cut.number) {
            Entry::Occupied(loaded) => loaded.into_mut(),
            Entry::Vacant(place) => {
                let context = RunContext::initialization(setup.settings.seed);
                let constants = executor()?.load(programs.constants.clone());
                place.insert(LoadedPrograms {
                    executables: [const { None }; Compute::ALL.len()],
                    constants: constants
                        .run(Vec::new(), &context)
                        .map_err(|source| cut.indices.locate(source))?
                        .into(),
                })
            }
        };
        let executable = match &loaded.executables[compute.slot()] {
            Some(executable) => executable.clone(),
            None => {
                let phase = programs.phase(compute);
                let phase = phase.expect("certified lists run programs that the stage has");
                let executable = executor()?.load(phase.program.clone());
                loaded.executables[compute.slot()]
                    .insert(executable)
                    .clone()
            }
        };
        Ok((executable, loaded.constants.clone()))
    }

    /// The value of the parameter at a position of the table, in the dtype in which programs read it.
    pub(super) fn parameter(&mut self, position: usize, dtype: DType) -> DynTensor {
        let place = self.places.get(&position).copied();
        let place = place.expect("certified programs read parameters that the stage holds");
        if let Some(cast) = self.cast.get(&place).filter(|cast| cast.dtype() == dtype) {
            return cast.clone();
        }
        let value = match place {
            Place::Owned(place) => self.owned.value(place),
            Place::Replica(place) => self.replicas.value(place),
        };
        if value.dtype() == dtype {
            return value;
        }
        let cast = value.cast_float(dtype);
        self.cast.insert(place, cast.clone());
        cast
    }

    /// Adds the gradient of a micro-batch, in the dtype of the parameter.
    pub(super) fn accumulate(&mut self, position: usize, gradient: DynTensor) {
        if let Some(Place::Owned(place)) = self.places.get(&position).copied() {
            let gradient = gradient.cast_float(self.owned.value(place).dtype());
            self.gradients[place] = Some(match self.gradients[place].take() {
                Some(sum) => sum + gradient,
                None => gradient,
            });
        }
    }

    /// Ends a step without an update.
    pub(super) fn drop_gradients(&mut self) {
        self.clear_gradients();
        self.kept_gradients
            .iter_mut()
            .for_each(|kept| kept.fill(None));
    }

    /// Drops gradients of an unfinished step.
    pub(super) fn clear_gradients(&mut self) {
        self.gradients.fill(None);
    }

    /// The squares of the gradients, in the order of the parameters.
    pub(super) fn square_sums(&self) -> SquareSums {
        SquareSums::of(&self.gradients)
    }

    /// The bytes of the gradients that it holds.
    pub(super) fn gradient_bytes(&self) -> u64 {
        self.gradients.iter().flatten().map(DynTensor::bytes).sum()
    }

    /// Runs the optimizer on every parameter that has a gradient, each clipped by `clip`.
    pub(super) fn update(
        &mut self,
        lr: &Rates,
        mut clip: impl FnMut(DynTensor) -> Result<DynTensor, ActionError>,
    ) -> Result<(), ActionError> {
        let rates: Vec<f64> = self.owned.paths().map(|path| lr.of(path)).collect();
        for (place, lr) in rates.into_iter().enumerate() {
            let gradient = self.gradients[place].take().map(&mut clip).transpose()?;
            if let Some(kept) = &mut self.kept_gradients {
                kept[place] = gradient.clone();
            }
            if let (Some(gradient), Some(optimizer)) = (gradient, &mut self.optimizer) {
                let value = optimizer.step(place, lr, self.owned.value(place), gradient);
                self.owned.replace(place, value)?;
                self.cast.remove(&Place::Owned(place));
            }
        }
        Ok(())
    }

    /// The parameters of which a replica stage holds copies, in the order of its plan.
    pub(super) fn shared_with(&self, layout: &Layout, replica: StageIndex) -> Vec<DynTensor> {
        let paths = layout.replicas(replica).iter();
        paths
            .filter_map(|path| {
                self.owned
                    .position(path)
                    .map(|place| self.owned.value(place))
            })
            .collect()
    }

    /// Replaces the copies of parameters that `owner` owns.
    pub(super) fn replace_shared(
        &mut self,
        layout: &Layout,
        owner: StageIndex,
        values: Vec<DynTensor>,
    ) -> Result<(), ActionError> {
        let of_owner: BTreeSet<&ParameterPath> = layout.owned(owner).iter().collect();
        let replicas = layout.replicas(self.index).iter();
        let places: Vec<usize> = replicas
            .filter(|path| of_owner.contains(path))
            .filter_map(|path| self.replicas.position(path))
            .collect();
        check_length(places.len(), values.len())?;
        for (place, value) in places.into_iter().zip(values) {
            self.replicas
                .replace(place, value.to_device(&self.setup.device)?)?;
            self.cast.remove(&Place::Replica(place));
        }
        Ok(())
    }
}
