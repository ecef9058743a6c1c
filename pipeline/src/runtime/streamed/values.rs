//! The values that a stage has while it runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use burn::optim::DynState;
use burn::tensor::TensorData;
use tinderbox_deferred::{
    Observer, ParameterPath, Request, Rows, Source, SourceError, read_values,
};
use tinderbox_fake::{DynTensor, ValueId};

use crate::kept::Holders;
use crate::runtime::digest::ReadError;
use crate::runtime::locked::locked;
use crate::runtime::optimizer::{SavedOptimizer, StateFields};
use crate::schedule::MicroBatchIndex;

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

/// A value in memory.
#[derive(Clone)]
pub(crate) enum Value {
    Parameter(DynTensor),
    State(State),
    Activation(DynTensor, Holders),
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

/// What a stage gets before it runs.
pub(crate) struct Values {
    /// Parameters, and the optimizer's states of those that are trained; the round keeps activations.
    pub(crate) items: HashMap<Item, Value>,
    /// Where rows of other parameters are read.
    pub(crate) rows: Option<RowSource>,
}

/// The states of parameters, by path.
pub(crate) struct States(pub(crate) Mutex<HashMap<ParameterPath, State>>);

impl SavedOptimizer for States {
    fn fields(&self, path: &ParameterPath) -> StateFields {
        match locked(&self.0).get(path) {
            Some(State::Read(fields, _)) => fields.clone(),
            _ => StateFields::default(),
        }
    }

    fn state(&self, path: &ParameterPath) -> Option<DynState> {
        let mut states = locked(&self.0);
        match states.remove(path)? {
            State::Kept(state) => Some(state),
            other => {
                states.insert(path.clone(), other);
                None
            }
        }
    }

    fn read(&self, path: &ParameterPath, _: &dyn Observer) -> Result<Vec<TensorData>, ReadError> {
        match locked(&self.0).remove(path) {
            Some(State::Read(_, data)) => Ok(data),
            _ => Ok(Vec::new()),
        }
    }
}

/// Where rows of parameters are read.
#[derive(Clone, derive_more::Debug)]
#[debug("RowSource({:?})", _0.describe())]
pub(crate) struct RowSource(pub(crate) Arc<dyn Source>);

/// The rows of one parameter.
pub(crate) struct ParameterRows {
    source: RowSource,
    whole: Request,
    observer: Arc<dyn Observer>,
}

impl ParameterRows {
    pub(crate) fn new(source: RowSource, whole: Request, observer: Arc<dyn Observer>) -> Self {
        Self {
            source,
            whole,
            observer,
        }
    }
}

impl Rows for ParameterRows {
    fn read(&self, rows: &[u64]) -> Result<DynTensor, SourceError> {
        let runs = rows.chunk_by(|row, next| row + 1 == *next);
        let requests = runs.map(|run| self.whole.rows(run[0], run[0] + run.len() as u64));
        let requests: Vec<Request> = requests.collect();
        let read = read_values(&requests, &*self.source.0, &*self.observer)?;
        Ok(DynTensor::joined(read))
    }
}
