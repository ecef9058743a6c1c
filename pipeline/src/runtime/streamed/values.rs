//! The values that a stage has while it runs.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::optim::DynState;
use burn::tensor::TensorData;
use tinderbox_deferred::{Observer, ParameterPath};
use tinderbox_fake::{DynTensor, ValueId};

use super::rows::RowSource;
use crate::kept::Holders;
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

/// What a stage gets before it runs, and gives back after it.
#[derive(Default)]
pub(crate) struct Values {
    /// By position in the table.
    pub(crate) parameters: HashMap<usize, DynTensor>,
    /// The optimizer's states of trained parameters, by position in the table.
    pub(crate) states: BTreeMap<usize, State>,
    /// Activations that were read.
    pub(crate) activations: Vec<(Activation, DynTensor, Holders)>,
    /// Where rows of other parameters are read.
    pub(crate) rows: Option<RowSource>,
}

impl Values {
    pub(crate) fn insert(&mut self, item: Item, value: Value) {
        match (item, value) {
            (Item::Parameter(position), Value::Parameter(value)) => {
                self.parameters.insert(position, value);
            }
            (Item::State(position), Value::State(state)) => {
                self.states.insert(position, state);
            }
            (Item::Activation(activation), Value::Activation(value, holders)) => {
                self.activations.push((activation, value, holders));
            }
            _ => unreachable!("the value of an item is of its kind"),
        }
    }

    pub(crate) fn remove(&mut self, item: Item) -> Option<Value> {
        match item {
            Item::Parameter(position) => self.parameters.remove(&position).map(Value::Parameter),
            Item::State(position) => self.states.remove(&position).map(Value::State),
            // The round keeps it.
            Item::Activation(_) => None,
        }
    }
}

/// The states of parameters, by path.
pub(crate) struct States(Mutex<HashMap<ParameterPath, State>>);

impl States {
    pub(crate) fn new(states: impl IntoIterator<Item = (ParameterPath, State)>) -> Self {
        Self(Mutex::new(states.into_iter().collect()))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ParameterPath, State>> {
        // No change panics halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SavedOptimizer for States {
    fn fields(&self, path: &ParameterPath) -> StateFields {
        match self.lock().get(path) {
            Some(State::Read(fields, _)) => fields.clone(),
            _ => StateFields::default(),
        }
    }

    fn state(&self, path: &ParameterPath) -> Option<DynState> {
        let mut states = self.lock();
        match states.remove(path)? {
            State::Kept(state) => Some(state),
            other => {
                states.insert(path.clone(), other);
                None
            }
        }
    }

    fn read(
        &self,
        path: &ParameterPath,
        _: &dyn Observer,
    ) -> Result<Vec<TensorData>, Box<dyn Error + Send + Sync>> {
        match self.lock().remove(path) {
            Some(State::Read(_, data)) => Ok(data),
            _ => Ok(Vec::new()),
        }
    }
}
