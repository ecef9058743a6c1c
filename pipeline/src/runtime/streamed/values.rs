//! The values that a stage has while it runs, and where they are while it does not.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use burn::optim::DynState;
use burn::tensor::{DType, Device, TensorData};
use parking_lot::Mutex;
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{
    Loaded, Observer, ParameterPath, ParameterTable, Request, Rows, Source, SourceError,
    read_values,
};
use tinderbox_fake::{DynTensor, ValueId};

use crate::Plan;
use crate::runtime::digest::ReadError;
use crate::runtime::learning_rates::StepRates;
use crate::runtime::optimizer::{SavedOptimizer, SavedState, StateFields};
use crate::schedule::{MicroBatchIndex, StageIndex};

/// A value of a micro-batch that one program computes and others read.
pub(crate) type Activation = (MicroBatchIndex, ValueId);

/// A value that is read when it is needed: a parameter, or the optimizer's state of one, by position in the table; or one that was
/// written when it did not fit.
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
    /// Moves a value here, if others have it.
    pub(crate) fn take(&mut self, item: Item, others: &mut Self) {
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

/// The optimizer's state of a parameter.
#[derive(Clone)]
pub(crate) enum State {
    /// The parameter has none yet.
    None,
    /// As it was read.
    Read(StateFields, Vec<TensorData>),
    /// As the optimizer has left it.
    Kept(DynState),
}

/// The request for a parameter by its position in the table, in the dtype in which it is read.
pub(crate) fn request_as(
    table: &ParameterTable,
    position: usize,
    dtype: DType,
    device: &Device,
) -> Request {
    let parameter = &table.iter().as_slice()[position];
    let request = Request::of(table, parameter, device);
    Request { dtype, ..request }
}

/// The states of parameters, by path.
pub(crate) struct States(pub(crate) Mutex<HashMap<ParameterPath, State>>);

impl SavedOptimizer for States {
    fn fields(&self, path: &ParameterPath) -> StateFields {
        match self.0.lock().get(path) {
            Some(State::Read(fields, _)) => fields.clone(),
            _ => StateFields::default(),
        }
    }

    fn state(&self, path: &ParameterPath) -> Option<DynState> {
        match self.0.lock().get(path) {
            Some(State::Kept(state)) => Some(state.clone()),
            _ => None,
        }
    }

    fn read(&self, path: &ParameterPath, _: &dyn Observer) -> Result<Vec<TensorData>, ReadError> {
        match self.0.lock().remove(path) {
            Some(State::Read(_, data)) => Ok(data),
            _ => Ok(Vec::new()),
        }
    }
}

/// The rows of one parameter.
pub(crate) struct ParameterRows {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) whole: Request,
    pub(crate) observer: Arc<dyn Observer>,
}

impl Rows for ParameterRows {
    fn read(&self, rows: &[u64]) -> Result<DynTensor, SourceError> {
        let runs = rows.chunk_by(|row, next| row + 1 == *next);
        let requests = runs.map(|run| self.whole.rows(run[0], run[0] + run.len() as u64));
        let requests: Vec<Request> = requests.collect();
        let read = read_values(&requests, &*self.source, &*self.observer)?;
        Ok(DynTensor::joined(read))
    }
}

/// What a stage has after the update of a step: the parameters that the step may have changed, and the state of their optimizer.
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

/// What is trained, from a start on.
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

/// Keeps the parameters and the state of the optimizer of a model that is trained with less memory than they need, such as in
/// files.
///
/// A step reads the values of the last committed step, gives new ones stage by stage, and commits them.
pub trait StageStore: Send + Sync {
    /// Begins or continues a training. Of an earlier one that has failed, nothing is written any more.
    ///
    /// # Errors
    ///
    /// When what the store has can't be the beginning of it; nothing changes then.
    fn start(&self, training: &StreamedTraining<'_>) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Returns the number of committed steps.
    fn step(&self) -> u64;

    /// Returns a source of the parameters of the last committed step, or before the first one, of those that training begins with.
    fn source(&self) -> Arc<dyn Source>;

    /// Returns the bytes, as far as known, that a later source of this store temporarily needs to load some values, in addition to
    /// them. By default the bytes that the current source needs.
    fn working_bytes(&self, requests: &[Request]) -> u64 {
        self.source().working_bytes(requests)
    }

    /// Returns the optimizer's state of the last committed step; `None` before the first one.
    fn optimizer(&self) -> Option<Arc<dyn SavedOptimizer>>;

    /// Returns a directory in which a step may write activations that do not fit in memory, until it ends. `None`, as by default:
    /// they stay in memory from the forward to the backward. It need not exist. It is asked for once, before the
    /// [start](Self::start).
    fn scratch_dir(&self) -> Option<PathBuf> {
        None
    }

    /// Writes what a stage has after a step, which is not committed yet. Each stage that has something to train calls it once in
    /// a step. It may return before that is written, but not before what was given earlier is: the values of one stage are counted
    /// while the next one runs.
    ///
    /// # Errors
    ///
    /// When the values can't be written: the step fails, and the last committed one stays.
    fn write(&self, step: u64, updated: UpdatedStage) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Makes the values of a step the current ones, all at once.
    ///
    /// # Errors
    ///
    /// When that fails; the last committed step stays.
    fn commit(&self, step: u64) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// The parameters of the last committed step, whichever that is.
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
