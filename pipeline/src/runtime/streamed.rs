//! The values of stages that hold their parameters only while they run, and the store from which they come.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::{DType, Device};
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{
    Loaded, Observer, ParameterPath, ParameterTable, Request, Rows, Source, SourceError,
    available_bytes, process_bytes, read_values,
};
use tinderbox_fake::{DynTensor, ValueId, is_host};
use tinderbox_planner::MemoryBudget;

use crate::cut::Layout;
use crate::runtime::optimizer::{State, bytes_per_element};
use crate::runtime::settings::Settings;
use crate::schedule::{MicroBatchIndex, StageIndex};
use crate::{JointGraph, Plan, RestoreError, SavedOptimizer, SavedState, StepRates};

/// A value of a micro-batch that one program computes and others read.
pub(crate) type Activation = (MicroBatchIndex, ValueId);

/// A value that is read when it is needed: a parameter or the optimizer's state of a parameter, by position in the table, or an
/// activation that was written because it did not fit in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Item {
    Parameter(usize),
    State(usize),
    Activation(Activation),
}

/// The values of stages in memory, by position in the table. A round has the activations.
#[derive(Default)]
pub(crate) struct StageValues {
    pub(crate) parameters: HashMap<usize, DynTensor>,
    /// The optimizer's states of parameters.
    pub(crate) states: HashMap<usize, State>,
}

impl StageValues {
    /// Moves a value from others to these, if it is among them.
    pub(crate) fn move_from(&mut self, others: &mut Self, item: Item) {
        match item {
            Item::Parameter(at) => {
                let value = others.parameters.remove_entry(&at);
                self.parameters.extend(value);
            }
            Item::State(at) => self.states.extend(others.states.remove_entry(&at)),
            Item::Activation(_) => {}
        }
    }
}

/// Returns the request for a parameter by its position in the table. `dtype` is the dtype in which it is read: the dtype of the
/// computation, even if the file has a smaller one, or for a training step the dtype of the parameter.
pub(crate) fn request_as(
    table: &ParameterTable,
    position: usize,
    dtype: DType,
    device: &Device,
) -> Request {
    let request = Request::of(table, &table.iter().as_slice()[position], device);
    Request { dtype, ..request }
}

/// The rows of one parameter.
pub(crate) struct ParameterRows {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) whole: Request,
    pub(crate) observer: Arc<dyn Observer>,
}

// Rows are read for one batch at a time and not ahead. From a checkpoint, each read has whole blocks of 1 MiB.
impl Rows for ParameterRows {
    fn read(&self, rows: &[u64]) -> Result<DynTensor, SourceError> {
        let runs = rows.chunk_by(|row, next| row + 1 == *next);
        let requests = runs.map(|run| self.whole.rows(run[0], run[0] + run.len() as u64));
        let requests: Vec<Request> = requests.collect();
        let read = read_values(&requests, &*self.source, &*self.observer)?;
        Ok(DynTensor::joined(read))
    }
}

/// The values of a stage after the update of a step: the parameters that the step may have changed, and the state of their
/// optimizer.
#[derive(Debug)]
pub struct UpdatedStage {
    /// The stage.
    pub stage: StageIndex,
    /// Its parameters that are trained, and its running states.
    pub parameters: Vec<(ParameterPath, DynTensor)>,
    /// The state of the optimizer for them.
    pub optimizer: SavedState,
    /// The learning rates of these parameters in the step.
    pub rates: StepRates,
}

/// A training, as it is reported to a [`StageStore`] at its start.
#[derive(Debug)]
pub struct StreamedTraining<'a> {
    /// The seed of random values of the forward, such as the values of dropout.
    pub seed: Seed,
    /// The plan.
    pub plan: &'a Plan,
    /// The number of micro-batches of a step.
    pub micro_batches: usize,
    /// The settings that decide the losses, as [`Pipeline::run_settings`](crate::Pipeline::run_settings) returns them.
    pub settings: BTreeMap<String, String>,
    /// The stages that a step may change, with the parameters and running states that it may change.
    pub trained: Vec<(StageIndex, Vec<ParameterPath>)>,
    /// Whether the optimizer keeps a state.
    pub keeps_state: bool,
}

/// Keeps the parameters and the optimizer's state of a model that is trained with less memory than they need, for example in
/// files.
///
/// A step reads the values of the last committed step, writes new values stage by stage, and commits them.
pub trait StageStore: Send + Sync {
    /// Begins or continues a training. An earlier training that has failed writes nothing after this call.
    ///
    /// # Errors
    ///
    /// When the training can't begin with the values of the store; nothing changes then.
    fn start(&self, training: &StreamedTraining<'_>) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Returns the number of committed steps.
    fn step(&self) -> u64;

    /// Returns a source of the parameters of the last committed step, or of the initial parameters if no step is committed.
    fn source(&self) -> Arc<dyn Source>;

    /// Returns the bytes that a later source of this store temporarily needs to load some values, in addition to the values, as
    /// far as they are known. Default: the bytes that the current source needs.
    fn working_bytes(&self, requests: &[Request]) -> u64 {
        self.source().working_bytes(requests)
    }

    /// Returns the optimizer's state of the last committed step; `None` before the first one.
    fn optimizer(&self) -> Option<Arc<dyn SavedOptimizer>>;

    /// Returns a directory in which a step may write activations that do not fit in memory, until it ends. With `None`, the
    /// default, they stay in memory from the forward to the backward. The directory need not exist. This is called once, before
    /// the [start](Self::start).
    fn scratch_dir(&self) -> Option<PathBuf> {
        None
    }

    /// Writes the values of a stage after a step, which is not committed yet. Each stage that has something to train calls it
    /// once in a step. It may return before these values are written, but not before the values of the earlier call are
    /// written: the values of one stage are counted while the next one runs.
    ///
    /// # Errors
    ///
    /// When the values can't be written. The step fails, and the last committed step stays.
    fn write(&self, step: u64, updated: UpdatedStage) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Makes the values of a step the current ones, all at once.
    ///
    /// # Errors
    ///
    /// When the commit fails. The last committed step stays.
    fn commit(&self, step: u64) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// The parameters of the step that is the last committed one at each call.
pub(crate) struct Stored(pub(crate) Arc<dyn StageStore>);

impl Source for Stored {
    fn load(&self, requests: &[Request], observer: &dyn Observer) -> Loaded {
        self.0.source().load(requests, observer)
    }

    fn load_uncached(&self, requests: &[Request], observer: &dyn Observer) -> Loaded {
        self.0.source().load_uncached(requests, observer)
    }

    fn check(&self, model: &ParameterTable, requests: &[Request]) -> Result<(), SourceError> {
        self.0.source().check(model, requests)
    }

    fn working_bytes(&self, requests: &[Request]) -> u64 {
        self.0.working_bytes(requests)
    }

    fn describe(&self) -> String {
        self.0.source().describe()
    }
}

/// The kind of a [`PipelineBuilder`](crate::PipelineBuilder) whose stages have their parameters only while they run, with the
/// settings of this kind.
#[derive(Clone, Default, derive_more::Debug)]
#[debug("OnDemand {{ budget: {budget:?}, host_bytes: {host_bytes}, .. }}")]
pub struct OnDemand {
    /// The memory limit.
    pub(crate) budget: MemoryBudget,
    /// The bytes of parameters that may stay in the memory of the host.
    pub(crate) host_bytes: u64,
    /// The store of the values between steps, for training.
    pub(crate) store: Option<Arc<dyn StageStore>>,
}

/// The parameters that each stage owns, by position in the table. A parameter that a step may change has the bytes of its
/// optimizer's state.
pub(crate) type Trained = Vec<BTreeMap<usize, Option<u64>>>;

/// The settings of a rank with streamed stages.
pub(crate) struct StreamedSetup {
    pub(crate) options: OnDemand,
    pub(crate) trained: Trained,
    /// Whether the system's cache of files can hold all values.
    pub(crate) is_cached: bool,
    /// The directory to which activations may be written.
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
                bytes_per_element(&**optimizer, rank, dtype) * parameter.elements()
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

/// Returns whether the system's cache of files can hold a model of this size in addition to the bytes that the limits of the
/// device and of the host allow. A cache that is a little too small holds no file of several that are read in turn.
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
