//! One stage on its rank: parameters, gradients, optimizer and programs.

mod gradients;
mod streamed;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use burn::tensor::{DType, Device, TensorData};
use tinderbox_deferred::{
    Executable, Executor, MaterializeError, MaterializeOptions, Observer, ParameterPath,
    PartialModule, Reload, RunContext, Source, materialize_parameters,
};
use tinderbox_fake::DynTensor;

use super::carry::{CarriedTensors, CarriedValues};
use super::changed::Recorded;
use super::indices::IndexPlaces;
use super::optimizer::{OptimizerSnapshot, OptimizerState};
use super::pieces::{Piece, Pieces, owned_by};
use super::rank::RankSetup;
use super::restore::{SavedOptimizer, StatesFound};
use super::round::MicroInput;
use super::step::check_length;
use super::streamed::{CutBytes, RowSource};
use super::weights::CountProgram;
use crate::certify::CertifiedPrograms;
use crate::schedule::{Compute, StageIndex};
use crate::sum::TreeSum;
use crate::trace::{Given, LossOver};
use crate::{ActionError, RestoreError};

/// A joint graph cut into the programs of every stage, shared by all ranks.
#[derive(Debug)]
pub(crate) struct CutProgram {
    /// Its number among the programs of the pipeline.
    pub(crate) number: u64,
    pub(crate) programs: CertifiedPrograms,
    /// What the loss of a micro-batch is a mean or a sum over.
    pub(super) loss_over: LossOver<CountProgram>,
    /// What its programs hold beside parameters.
    pub(super) bytes: CutBytes,
    /// The places of its operations that read by index.
    pub(super) indices: IndexPlaces,
    /// The carried tensors of the batch.
    pub(super) carried: CarriedTensors,
}

/// The programs of one stage on its device, each loaded at its first run, with the inputs that are the
/// same in every run.
#[derive(Clone, Debug)]
struct LoadedPrograms {
    executables: [Option<Executable>; Compute::ALL.len()],
    /// `None` while a streamed stage does not run.
    constants: Option<Arc<[DynTensor]>>,
}

/// The container and the index of a parameter of the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Owned(usize),
    Copy(usize),
}

/// The parameters, gradients and optimizer of one stage.
#[derive(Debug)]
pub struct Stage {
    index: StageIndex,
    setup: Arc<RankSetup>,
    owned: PartialModule,
    copies: PartialModule,
    places: HashMap<usize, Place>,
    optimizer: Option<OptimizerState>,
    /// The owned parameters that do not train now.
    frozen: BTreeSet<usize>,
    /// The values of parameters that are replaced by their averages, by position in the table.
    averaged: Option<Vec<(usize, DynTensor)>>,
    /// Which replica updates what.
    pieces: Arc<Pieces>,
    /// The sums of the gradients of this replica's micro-batches, by owned parameter.
    sums: Vec<TreeSum<DynTensor>>,
    /// The complete gradients of the pieces that it updates.
    gradients: Vec<Option<DynTensor>>,
    /// New values of its pieces that are not whole parameters, until all of them are there.
    updated_rows: Vec<Option<DynTensor>>,
    /// What it held after the last step, if that is checked and the program has changed nothing since.
    pub(super) recorded: Option<Recorded>,
    /// New values of running states, by position in the table, until the update of the step.
    updated_states: BTreeMap<usize, DynTensor>,
    /// Gradients of its pieces in the last step, if the settings keep them; they need additional memory of their
    /// size.
    kept_gradients: Option<Vec<Option<DynTensor>>>,
    /// Parameters in the dtype in which programs read them, if it is not their own, from the first
    /// program that reads one to the next update.
    cast: HashMap<Place, DynTensor>,
    /// The values that stay from one evaluation to the next.
    pub(super) carried: CarriedValues,
    /// The parameters of a stage that is streamed while it runs, by position in the table. It holds no others.
    streamed: HashMap<usize, DynTensor>,
    /// Where rows of its other parameters are read.
    rows: Option<RowSource>,
    /// By the number of the cut.
    loaded: BTreeMap<u64, LoadedPrograms>,
}

impl Stage {
    /// Materializes only the parameters that the stage holds.
    pub(super) fn new(
        index: StageIndex,
        setup: &Arc<RankSetup>,
        source: &dyn Source,
    ) -> Result<Self, MaterializeError> {
        let RankSetup {
            layout,
            table,
            settings,
            ..
        } = &**setup;
        let parameters = table.iter().as_slice();
        let hold = |positions: &[usize]| {
            let paths = positions.iter().map(|at| &parameters[*at].path);
            let paths: BTreeSet<&ParameterPath> = paths.collect();
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
        let copies = hold(layout.copies(index))?;
        Ok(Self::with(index, setup, owned, copies))
    }

    fn with(
        index: StageIndex,
        setup: &Arc<RankSetup>,
        owned: PartialModule,
        copies: PartialModule,
    ) -> Self {
        let settings = &setup.settings;
        let parameters = setup.table.iter().as_slice();
        let held = parameters.iter().enumerate();
        let places = held.filter_map(|(position, parameter)| {
            let own = owned.position(&parameter.path).map(Place::Owned);
            let copy = || copies.position(&parameter.path).map(Place::Copy);
            Some((position, own.or_else(copy)?))
        });
        let places = places.collect();
        let pieces = Arc::new(Pieces::new(&owned_by(setup, &owned), settings.replicas));
        let own = pieces.of(setup.replica);
        let optimizer = settings.optimizers.as_ref().map(|optimizers| {
            let rules = own
                .iter()
                .map(|piece| optimizers.of(owned.path(piece.place)).clone());
            OptimizerState::new(rules.collect())
        });
        let count = own.len();
        let sums = vec![TreeSum::default(); owned.len()];
        Self {
            index,
            setup: setup.clone(),
            owned,
            copies,
            places,
            pieces,
            optimizer,
            frozen: BTreeSet::new(),
            averaged: None,
            sums,
            gradients: vec![None; count],
            updated_rows: vec![None; count],
            recorded: None,
            updated_states: BTreeMap::new(),
            kept_gradients: settings.keep_gradients.then(|| vec![None; count]),
            cast: HashMap::new(),
            carried: CarriedValues::default(),
            streamed: HashMap::new(),
            rows: None,
            loaded: BTreeMap::new(),
        }
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
    pub fn copies(&self) -> &PartialModule {
        &self.copies
    }

    /// Returns the bytes of all parameters that it holds, copies included.
    pub fn parameter_bytes(&self) -> u64 {
        self.owned.bytes() + self.copies.bytes()
    }

    /// Returns the bytes of the copies of parameters in a second dtype, for a forward in mixed
    /// precision.
    pub fn cast_bytes(&self) -> u64 {
        self.cast.values().map(DynTensor::bytes).sum()
    }

    /// Returns the bytes of the values that it holds for the next evaluations with a [`Carry`](crate::Carry).
    pub fn carried_bytes(&self) -> u64 {
        self.carried.bytes()
    }

    /// Returns the gradients of the last training step as passed to the optimizer, by path: summed over
    /// its micro-batches, clipped if the pipeline clips, and changed by [the
    /// function](crate::PipelineBuilder::on_gradients) for gradients. Empty unless the pipeline
    /// [keeps](crate::PipelineBuilder::keep_gradients) them, and after a skipped step.
    ///
    /// With [replicas](crate::Plan::replicas), each has the sums over all of them for the parameters that it updates. A large
    /// parameter may be divided: the parts are rows, in the order of the replicas.
    pub fn gradients(&self) -> impl Iterator<Item = (&ParameterPath, &DynTensor)> {
        let pairs = self
            .own_pieces()
            .iter()
            .zip(self.kept_gradients.iter().flatten());
        pairs.filter_map(|(piece, gradient)| {
            Some((self.owned.path(piece.place), gradient.as_ref()?))
        })
    }

    /// Whether its replica is the first, or the only one.
    pub(super) fn is_of_first_replica(&self) -> bool {
        self.setup.replica == 0
    }

    /// The parameters that it holds, copies included, by position in the table.
    pub(super) fn held(&self) -> impl Iterator<Item = (usize, DynTensor)> {
        let mut places: Vec<(usize, Place)> = self.places.iter().map(|(p, of)| (*p, *of)).collect();
        places.sort_unstable_by_key(|(position, _)| *position);
        places
            .into_iter()
            .map(|(position, place)| (position, self.value(place)))
    }

    /// The pieces that it updates.
    pub(super) fn own_pieces(&self) -> &[Piece] {
        self.pieces.of(self.setup.replica)
    }

    /// Which replica updates what.
    pub(super) fn pieces(&self) -> Arc<Pieces> {
        self.pieces.clone()
    }

    /// Returns the current state of its optimizer without a copy: later steps do not change it. It is empty
    /// [with averages](crate::Pipeline::with_averages).
    pub fn optimizer_snapshot(&self) -> OptimizerSnapshot {
        let pieces = self.own_pieces().iter();
        let pieces = pieces.map(|piece| (self.owned.path(piece.place).clone(), piece.clone()));
        OptimizerSnapshot::new(
            self.optimizer.clone().filter(|_| self.averaged.is_none()),
            pieces.collect(),
        )
    }

    /// Returns an observer for progress reports of calls on the ranks: a call that reports may take any
    /// time, as described at [timeout](crate::PipelineBuilder::timeout).
    pub fn observer(&self) -> Arc<dyn Observer> {
        self.setup.progress.clone()
    }

    /// Checks that saved values fit, and returns which states were found. Reads no values and changes nothing.
    pub(super) fn check_restore(
        &self,
        source: &dyn Source,
        state: &dyn SavedOptimizer,
    ) -> Result<StatesFound, RestoreError> {
        let mut found = StatesFound::default();
        let RankSetup { table, device, .. } = &*self.setup;
        for module in [&self.owned, &self.copies] {
            let reload = Reload::new(table, module, device);
            reload.check(table, source, self.setup.settings.memory)?;
        }
        if let Some(optimizer) = &self.optimizer {
            for (position, piece) in self.own_pieces().iter().enumerate() {
                let path = self.owned.path(piece.place);
                let parameter = (position, path, &*piece.shape);
                let fields = state.fields(path);
                optimizer.check(parameter, &fields, device)?;
                match fields.is_empty() && state.state(path).is_none() {
                    true => found.without.push(path.clone()),
                    false => found.is_any = true,
                }
            }
        }
        Ok(found)
    }

    /// Replaces parameters and optimizer state, one after the other. After an error, some are new and
    /// others old.
    pub(super) fn restore(
        &mut self,
        source: &dyn Source,
        state: &dyn SavedOptimizer,
    ) -> Result<(), RestoreError> {
        self.cast.clear();
        self.recorded = None;
        self.drop_gradients();
        let setup = &*self.setup;
        for module in [&mut self.owned, &mut self.copies] {
            let reload = Reload::new(&setup.table, module, &setup.device);
            reload.run(module, source, &*setup.progress)?;
        }
        self.restore_optimizer(state)
    }

    /// Replaces the state of the optimizer.
    pub(super) fn restore_optimizer(
        &mut self,
        state: &dyn SavedOptimizer,
    ) -> Result<(), RestoreError> {
        let setup = &*self.setup;
        let Some(optimizer) = &mut self.optimizer else {
            return Ok(());
        };
        let pieces = self.pieces.of(setup.replica).iter();
        let parameters = pieces.map(|piece| (self.owned.path(piece.place), piece));
        let parameters: Vec<_> = parameters.collect();
        optimizer.restore(&parameters, state, &setup.device, &*setup.progress)
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
        let programs = &cut.programs.stages[self.index.index()];
        let setup = &self.setup;
        let executor = || -> Result<Executor, ActionError> {
            let executor = Executor::new(&setup.device)?;
            Ok(executor.checking_indices(setup.settings.check_indices))
        };
        let loaded = self.loaded.entry(cut.number);
        let loaded = loaded.or_insert_with(|| LoadedPrograms {
            executables: [const { None }; Compute::ALL.len()],
            constants: None,
        });
        let constants = match &loaded.constants {
            Some(constants) => constants.clone(),
            None => {
                let context = RunContext::initialization(setup.settings.seed);
                let constants = executor()?.load(programs.constants.clone());
                let made = constants.run(Vec::new(), &context);
                let made = made.map_err(|source| cut.indices.locate(source))?;
                loaded.constants.insert(made.into()).clone()
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
        Ok((executable, constants))
    }

    fn place(&self, position: usize) -> Place {
        let place = self.places.get(&position).copied();
        place.expect("certified programs and lists read parameters that the stage holds")
    }

    fn value(&self, place: Place) -> DynTensor {
        match place {
            Place::Owned(index) => self.owned.value(index),
            Place::Copy(index) => self.copies.value(index),
        }
    }

    /// The value of the parameter at a position of the table, in the dtype in which programs read it.
    pub(super) fn parameter(&mut self, position: usize, dtype: DType) -> DynTensor {
        if let Some(state) = self.updated_states.get(&position) {
            return state.clone().cast_float(dtype);
        }
        if let Some(value) = self.streamed.get(&position) {
            // Read in the dtype of the program, unless programs differ.
            return value.clone().cast_float(dtype);
        }
        let place = self.place(position);
        if let Some(cast) = self.cast.get(&place).filter(|cast| cast.dtype() == dtype) {
            return cast.clone();
        }
        let value = self.value(place);
        if value.dtype() == dtype {
            return value;
        }
        let cast = value.cast_float(dtype);
        self.cast.insert(place, cast.clone());
        cast
    }

    /// A value of a micro-batch that no program computes, in the dtype in which programs read it.
    pub(super) fn given(
        &mut self,
        given: Given,
        dtype: DType,
        micro_batch: &MicroInput,
    ) -> Result<DynTensor, ActionError> {
        Ok(match given {
            Given::Parameter(position) => self.parameter(position, dtype),
            Given::Input(position) => {
                let input = micro_batch.inputs[position].clone();
                input.to_device(&self.setup.device)?
            }
            Given::Weight => {
                let data = TensorData::new(vec![micro_batch.weight], [1]).convert_dtype(dtype);
                DynTensor::from_data(data, &self.setup.device)
            }
        })
    }

    /// Gives a running state the value that the forward of a micro-batch computed.
    pub(super) fn update_state(&mut self, position: usize, value: DynTensor) {
        // What a batch alone gives has the dtype of the forward.
        let dtype = match self.streamed.get(&position) {
            Some(state) => state.dtype(),
            None => self.value(self.place(position)).dtype(),
        };
        self.updated_states
            .insert(position, value.cast_float(dtype));
    }

    /// Replaces the value of a parameter, if it holds it.
    pub(super) fn set(&mut self, position: usize, value: DynTensor) -> Result<(), ActionError> {
        let Some(place) = self.places.get(&position).copied() else {
            return Ok(());
        };
        let value = value.to_device(&self.setup.device)?;
        self.recorded = None;
        match place {
            Place::Owned(index) => self.owned.replace(index, value)?,
            Place::Copy(index) => self.copies.replace(index, value)?,
        }
        self.cast.remove(&place);
        Ok(())
    }

    /// Sets whether parameters of the stage train, by position in the table.
    pub(super) fn set_trains(&mut self, positions: &[usize], trains: bool) {
        for position in positions {
            if let Some(Place::Owned(place)) = self.places.get(position).copied() {
                match trains {
                    true => self.frozen.remove(&place),
                    false => self.frozen.insert(place),
                };
            }
        }
    }

    /// Returns the averages of owned parameters, by position in the table, and keeps the values of these parameters. As
    /// long as it keeps them, the state of the optimizer is not saved.
    pub(super) fn averages(&mut self) -> Vec<(usize, DynTensor)> {
        let owned = self.places.iter();
        let owned = owned.filter_map(|(position, place)| match place {
            Place::Owned(place) => Some((*place, *position)),
            Place::Copy(_) => None,
        });
        let positions: HashMap<usize, usize> = owned.collect();
        let pieces = self.own_pieces().iter().enumerate();
        let with_average = pieces.filter_map(|(at, piece)| {
            let average = self.optimizer.as_ref()?.average(at)?;
            let position = positions[&piece.place];
            let value = self.owned.value(piece.place);
            let average = average.cast_float(value.dtype());
            Some(((position, piece.of(value)), (position, average)))
        });
        let (values, averages) = with_average.unzip();
        self.averaged = Some(values);
        averages
    }

    /// Returns the values of the parameters that it has kept for their averages, by position in the table.
    pub(super) fn take_averaged(&mut self) -> Vec<(usize, DynTensor)> {
        self.averaged.take().unwrap_or_default()
    }

    /// The parameters of which a copy stage holds copies.
    pub(super) fn shared_with(&self, copy: StageIndex) -> Vec<DynTensor> {
        let shared = self.setup.layout.shared(self.index, copy);
        let values = shared.map(|position| self.value(self.place(position)));
        values.collect()
    }

    /// Replaces the copies of parameters that `owner` owns.
    pub(super) fn replace_shared(
        &mut self,
        owner: StageIndex,
        values: Vec<DynTensor>,
    ) -> Result<(), ActionError> {
        let setup = self.setup.clone();
        let shared: Vec<usize> = setup.layout.shared(owner, self.index).collect();
        check_length(shared.len(), values.len())?;
        for (position, value) in shared.into_iter().zip(values) {
            if let Place::Copy(_) = self.place(position) {
                self.set(position, value)?;
            }
        }
        Ok(())
    }
}
