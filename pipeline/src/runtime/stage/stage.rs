//! One stage on its rank: parameters, gradients, optimizer and programs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use burn::optim::grad_clipping::GradientClippingConfig;
use burn::tensor::{DType, Device, TensorData};
use tinderbox_deferred::{
    Executable, Executor, MaterializeError, MaterializeOptions, Observer, Parameter, ParameterPath,
    ParameterTable, PartialModule, RunContext, Source, materialize_parameters,
};
use tinderbox_fake::DynTensor;

use super::held::{Gradients, Held, Place, Recorded};
use crate::cut::Layout;
use crate::runtime::link::Abort;
use crate::runtime::optimizer::{OptimizerSnapshot, PieceOptimizer, works_by_row};
use crate::runtime::pieces::{Owned, Piece, Pieces};
use crate::runtime::program::{CarriedValues, CutProgram};
use crate::runtime::progress::RankProgress;
use crate::runtime::round::MicroInput;
use crate::runtime::settings::Settings;
use crate::runtime::streamed::StreamedSetup;
use crate::schedule::{Compute, RankIndex, StageIndex};
use crate::trace::Given;
use crate::{ActionError, ActionResult};

/// The parameters, gradients and optimizer of one stage.
#[derive(Debug)]
pub struct Stage {
    pub(super) index: StageIndex,
    pub(crate) setup: Arc<RankSetup>,
    pub(crate) held: Held,
    /// The pieces that each replica updates.
    pub(crate) pieces: Arc<Pieces>,
    /// The optimizers of the pieces that it updates; empty in a pipeline that can't train.
    pub(super) optimizers: Vec<PieceOptimizer>,
    pub(crate) gradients: Gradients,
    /// The values of parameters that are replaced by their averages, by position in the table.
    pub(super) averaged: Option<Vec<(usize, DynTensor)>>,
    /// The digests after the last step, if they are checked and the user has changed nothing since.
    pub(crate) recorded: Option<Recorded>,
    /// The values that stay from one evaluation to the next.
    pub(crate) carried: CarriedValues,
    /// The loaded programs, by the number of the cut.
    pub(super) loaded: BTreeMap<u64, LoadedPrograms>,
}

impl Stage {
    /// Materializes only the parameters that the stage holds.
    pub(crate) fn new(
        index: StageIndex,
        setup: &Arc<RankSetup>,
        source: &dyn Source,
    ) -> Result<Self, MaterializeError> {
        let parameters = setup.table.iter().as_slice();
        let hold = |positions: &[usize]| {
            let paths = positions.iter().map(|at| &parameters[*at].path);
            let paths: BTreeSet<&ParameterPath> = paths.collect();
            let options = MaterializeOptions::on(&setup.device).only(|p| paths.contains(&p.path));
            let options = options.memory_check(setup.settings.memory_check);
            let options = options.observer(&*setup.progress);
            materialize_parameters(&setup.table, options, source)
        };
        let owned = hold(setup.layout.owned(index))?;
        let copies = hold(setup.layout.copies(index))?;
        Ok(Self::with(index, setup, owned, copies))
    }

    pub(super) fn with(
        index: StageIndex,
        setup: &Arc<RankSetup>,
        owned: PartialModule,
        copies: PartialModule,
    ) -> Self {
        let settings = &setup.settings;
        let pieces = Arc::new(Pieces::new(&owned_by(setup, &owned), setup.layout.replicas));
        let own = pieces.of(setup.replica);
        let optimizers = own.iter().filter_map(|piece| {
            let path = owned.path(piece.place);
            Some(PieceOptimizer {
                path: path.clone(),
                piece: piece.clone(),
                rule: settings.optimizers.as_ref()?.of(path).clone(),
                state: None,
            })
        });
        let optimizers = optimizers.collect();
        Self {
            index,
            setup: setup.clone(),
            gradients: Gradients::new(owned.len(), own.len(), settings.keep_gradients),
            held: Held::new(&setup.table, owned, copies),
            pieces,
            optimizers,
            averaged: None,
            recorded: None,
            carried: CarriedValues::default(),
            loaded: BTreeMap::new(),
        }
    }

    /// Returns its index in the plan.
    pub fn index(&self) -> StageIndex {
        self.index
    }

    /// Returns the parameters that it owns, as a Burn module under their original paths.
    pub fn parameters(&self) -> &PartialModule {
        &self.held.owned
    }

    /// Returns its copies of parameters that other stages own.
    pub fn copies(&self) -> &PartialModule {
        &self.held.copies
    }

    /// Returns the bytes of all parameters that it holds, copies included.
    pub fn parameter_bytes(&self) -> u64 {
        self.held.owned.bytes() + self.held.copies.bytes()
    }

    /// Returns the bytes of the copies of parameters in a second dtype, for a forward in mixed
    /// precision.
    pub fn cast_bytes(&self) -> u64 {
        self.held.cast.values().map(DynTensor::bytes).sum()
    }

    /// Returns the bytes of the values that it holds for the next evaluations with a [`Carry`](crate::Carry).
    pub fn carried_bytes(&self) -> u64 {
        self.carried.values().map(DynTensor::bytes).sum()
    }

    /// Returns the gradients of the last training step as passed to the optimizer, by path: summed over
    /// its micro-batches, clipped if the pipeline clips, and changed by [the
    /// function](crate::PipelineBuilder::on_gradients) for gradients. Empty unless the pipeline
    /// [keeps](crate::PipelineBuilder::keep_gradients) them, and after a skipped step.
    ///
    /// With [replicas](crate::Plan::replicas), each replica has the sums over all replicas, for the parameters that it
    /// updates. A large parameter may be divided: the parts are rows, in the order of the replicas.
    pub fn gradients(&self) -> impl Iterator<Item = (&ParameterPath, &DynTensor)> {
        let kept = self.gradients.kept.iter().flatten();
        let pairs = self.own_pieces().iter().zip(kept);
        pairs.filter_map(|(piece, gradient)| {
            Some((self.held.owned.path(piece.place), gradient.as_ref()?))
        })
    }

    /// The pieces that it updates.
    pub(crate) fn own_pieces(&self) -> &[Piece] {
        self.pieces.of(self.setup.replica)
    }

    /// Returns the current state of its optimizer without a copy: later steps do not change it. It is empty
    /// [with averages](crate::Pipeline::with_averages).
    pub fn optimizer_snapshot(&self) -> OptimizerSnapshot {
        OptimizerSnapshot(match self.averaged {
            Some(_) => Vec::new(),
            None => self.optimizers.clone(),
        })
    }

    /// Returns an observer for progress reports of calls on the ranks: a call that reports may take any
    /// time, as described at [timeout](crate::PipelineBuilder::timeout).
    pub fn observer(&self) -> Arc<dyn Observer> {
        self.setup.progress.clone()
    }

    /// Returns its device.
    pub fn device(&self) -> &Device {
        &self.setup.device
    }

    /// Drops the values that an unfinished step has left, the programs of cuts that are no longer kept, and the values of
    /// carries that no longer exist.
    pub(crate) fn begin_round(&mut self, cuts: &BTreeSet<u64>, carries: &BTreeSet<u64>) {
        self.clear_gradients();
        self.loaded.retain(|number, _| cuts.contains(number));
        self.carried
            .retain(|(carry, ..), _| carries.contains(carry));
    }

    /// Returns a program of this stage on its device, and its inputs that are the same in every run.
    pub(crate) fn load(
        &mut self,
        cut: &CutProgram,
        compute: Compute,
    ) -> ActionResult<(Executable, Arc<[DynTensor]>)> {
        let (setup, programs) = (&self.setup, &cut.programs.stages[self.index.index()]);
        let executor = || -> ActionResult<Executor> {
            Ok(Executor::new(&setup.device)?.checking_indices(setup.settings.check_indices))
        };
        let loaded = self.loaded.entry(cut.number).or_default();
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
                let loaded = &mut loaded.executables[compute.slot()];
                loaded.insert(executable).clone()
            }
        };
        Ok((executable, constants))
    }

    /// A value of a micro-batch that no program computes, in the dtype in which programs read it.
    pub(crate) fn given(
        &mut self,
        given: Given,
        dtype: DType,
        micro_batch: &MicroInput,
    ) -> ActionResult<DynTensor> {
        Ok(match given {
            Given::Parameter(position) => self.held.read(position, dtype),
            Given::Input(position) => micro_batch.inputs[position]
                .clone()
                .to_device(&self.setup.device)?,
            Given::Weight => {
                let data = TensorData::new(vec![micro_batch.weight], [1]).convert_dtype(dtype);
                DynTensor::from_data(data, &self.setup.device)
            }
        })
    }

    /// Replaces the value of a parameter, if it holds it.
    pub(crate) fn set(&mut self, position: usize, value: DynTensor) -> ActionResult {
        self.recorded = None;
        self.held.set(position, value, &self.setup.device)
    }

    /// Returns the averages of owned parameters, by position in the table, and keeps the values of these parameters. As
    /// long as it keeps them, the state of the optimizer is not saved.
    pub(crate) fn averages(&mut self) -> Vec<(usize, DynTensor)> {
        let owned = self.held.owned_places();
        let positions: HashMap<usize, usize> = owned.map(|(at, place)| (place, at)).collect();
        let with_average = self.optimizers.iter().filter_map(|optimizer| {
            let (average, piece) = (optimizer.average()?, &optimizer.piece);
            let position = positions[&piece.place];
            let value = self.held.owned.value(piece.place);
            let average = average.cast_float(value.dtype());
            Some(((position, piece.of(value)), (position, average)))
        });
        let (values, averages) = with_average.unzip();
        self.averaged = Some(values);
        averages
    }

    /// Returns the values of the parameters that it has kept for their averages, by position in the table.
    pub(crate) fn take_averaged(&mut self) -> Vec<(usize, DynTensor)> {
        self.averaged.take().unwrap_or_default()
    }

    /// The values of its parameters that `copy` holds copies of.
    pub(crate) fn shared_with(&self, copy: StageIndex) -> Vec<DynTensor> {
        let shared = self.setup.layout.shared(self.index, copy);
        shared.map(|at| self.held.value_at(at)).collect()
    }

    /// Replaces the copies of parameters that `owner` owns.
    pub(crate) fn replace_shared(
        &mut self,
        owner: StageIndex,
        values: Vec<DynTensor>,
    ) -> ActionResult {
        let setup = self.setup.clone();
        let shared: Vec<usize> = setup.layout.shared(owner, self.index).collect();
        check_length(shared.len(), values.len())?;
        for (position, value) in shared.into_iter().zip(values) {
            if let Place::Copy(_) = self.held.place(position) {
                self.set(position, value)?;
            }
        }
        Ok(())
    }
}

/// A stage of a rank.
pub(crate) fn stage_of(stages: &mut [Stage], index: StageIndex) -> &mut Stage {
    let stage = stages.iter_mut().find(|stage| stage.index == index);
    stage.expect("certified lists of a rank name its own stages")
}

/// Replaces the values of parameters by position in the table, on the stages that hold them.
pub(crate) fn set_all<'a>(
    stages: &mut [Stage],
    values: impl Iterator<Item = &'a (usize, DynTensor)> + Clone,
) -> ActionResult {
    for stage in stages {
        let mut values = values.clone();
        values.try_for_each(|(position, value)| stage.set(*position, value.clone()))?;
    }
    Ok(())
}

/// Sets whether parameters train, by position in the table, on the stages that own them.
pub(crate) fn set_trains(stages: &mut [Stage], positions: &[usize], trains: bool) {
    for stage in stages {
        for position in positions {
            if let Some(Place::Owned(place)) = stage.held.places.get(position) {
                match trains {
                    true => stage.gradients.frozen.remove(place),
                    false => stage.gradients.frozen.insert(*place),
                };
            }
        }
    }
}

/// Checks the number of tensors of a message.
pub(crate) fn check_length(expected: usize, found: usize) -> ActionResult {
    let wrong = ActionError::MessageLength { expected, found };
    (expected == found).then_some(()).ok_or(wrong)
}

/// The programs of one stage on its device, each loaded at its first run, with the inputs that are the
/// same in every run.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadedPrograms {
    executables: [Option<Executable>; Compute::ALL.len()],
    /// `None` while a streamed stage does not run.
    pub(super) constants: Option<Arc<[DynTensor]>>,
}

/// The constant part of a rank.
#[derive(derive_more::Debug)]
#[debug("RankSetup {{ rank: {rank:?}, device: {device:?}, .. }}")]
pub(crate) struct RankSetup {
    /// The index of the rank among all.
    pub(crate) rank: RankIndex,
    /// The replica of the rank.
    pub(crate) replica: usize,
    /// The index of the rank in its replica.
    pub(crate) place: RankIndex,
    pub(crate) layout: Arc<Layout>,
    /// The parameters of the model.
    pub(crate) table: Arc<ParameterTable>,
    /// The device of its stages.
    pub(crate) device: Device,
    pub(crate) settings: Arc<Settings>,
    /// Counts the values that it computes and reads.
    pub(crate) progress: Arc<RankProgress>,
    /// Stops all ranks.
    pub(crate) abort: Abort,
    /// The settings of streaming, if its stages get their parameters only while they run.
    pub(crate) streamed: Option<Arc<StreamedSetup>>,
}

/// The parameters that a stage owns, in the order of the table.
pub(crate) fn owned_by(setup: &RankSetup, owned: &PartialModule) -> Vec<Owned> {
    let settings = &setup.settings;
    let is_norm = |clip: Option<&_>| matches!(clip, Some(GradientClippingConfig::Norm(_)));
    let reads_whole = settings.gradient_hook.is_some() || is_norm(settings.each());
    let mut tried: HashMap<(usize, usize), bool> = HashMap::new();
    let mut by_row = |parameter: &Parameter| {
        let optimizers = settings.optimizers.as_ref();
        let Some(optimizers) = optimizers.filter(|_| setup.layout.replicas > 1) else {
            return false;
        };
        let rule = optimizers.of(&parameter.path);
        let rank = parameter.shape.len();
        let known = (Arc::as_ptr(&rule.optimizer).cast::<()>() as usize, rank);
        if reads_whole || is_norm(rule.clipping.as_ref()) || !rule.is_by_element {
            return false;
        }
        // The claim of a configuration is tried, because wrong bits would be silent.
        let tried = tried.entry(known);
        *tried.or_insert_with(|| works_by_row(&*rule.optimizer, rank))
    };
    let parameters = setup.table.iter().filter_map(|parameter| {
        Some(Owned {
            place: owned.position(&parameter.path)?,
            shape: parameter.shape.clone(),
            dtype: parameter.dtype,
            trains: parameter.trainable,
            by_row: parameter.trainable && by_row(parameter),
        })
    });
    parameters.collect()
}
