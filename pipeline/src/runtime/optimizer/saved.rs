//! Saved states of optimizers, by parameter.

use std::collections::BTreeMap;

use burn::optim::{DynOptimizer, DynState, StateSink};
use burn::tensor::{DType, TensorData};
use burn_pack::Scalar;
use tinderbox_deferred::{Observer, ParameterPath};

use crate::runtime::digest::AnyError;

/// The saved state of an optimizer, by parameter. Its fields are available before any value is read.
pub trait SavedOptimizer: Send + Sync {
    /// Returns the fields that were saved for a parameter; empty if the optimizer had no state for it.
    /// Reads no values.
    fn fields(&self, path: &ParameterPath) -> StateFields;

    /// Returns the values of the tensors of each parameter, in the order of its [`fields`](Self::fields). An implementation may
    /// read many small values faster together. Reports bytes to the observer as they are read.
    ///
    /// # Errors
    ///
    /// When a value can't be read.
    fn read(
        &self,
        paths: &[&ParameterPath],
        observer: &dyn Observer,
    ) -> Result<Vec<Vec<TensorData>>, AnyError>;

    /// Does the same as [`read`](Self::read), for values that are read again and again and exceed the system's cache of files.
    /// An implementation with files should bypass the cache.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    fn read_uncached(
        &self,
        paths: &[&ParameterPath],
        observer: &dyn Observer,
    ) -> Result<Vec<Vec<TensorData>>, AnyError> {
        self.read(paths, observer)
    }
}

/// The saved fields of an optimizer's state for one parameter. Names are `optimizer.<path>.<field>`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateFields {
    /// The tensors.
    pub tensors: Vec<StateTensor>,
    /// The name and value of every scalar.
    pub scalars: Vec<(String, Scalar)>,
}

/// A tensor of an optimizer's state, without its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateTensor {
    /// Its name.
    pub name: String,
    /// The size of each dimension.
    pub shape: Vec<u64>,
    /// The dtype.
    pub dtype: DType,
}

impl StateFields {
    /// Returns whether nothing was saved.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty() && self.scalars.is_empty()
    }

    /// The bytes of the tensors.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = self.tensors.iter().map(|tensor| {
            let elements: u64 = tensor.shape.iter().product();
            elements * tensor.dtype.size() as u64
        });
        bytes.sum()
    }

    /// The names of tensors and scalars.
    pub(crate) fn names(&self) -> Vec<String> {
        let tensors = self.tensors.iter().map(|tensor| &tensor.name);
        let scalars = self.scalars.iter().map(|(name, _)| name);
        tensors.chain(scalars).cloned().collect()
    }
}

/// The optimizer state of some parameters in memory, as named tensors and scalars. Names are
/// `optimizer.<path>.<field>`.
#[derive(Clone, Debug, Default)]
pub struct SavedState {
    /// The name and value of every tensor.
    pub tensors: Vec<(String, TensorData)>,
    /// The name and value of every scalar.
    pub scalars: Vec<(String, Scalar)>,
    /// The tensors, by name, of which `tensors` has only some rows, because [replicas](crate::Plan::replicas) divide the
    /// parameter. The scalars of such a parameter are the scalars of the first part.
    pub parts: BTreeMap<String, StatePart>,
}

/// The part of a tensor in a saved state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePart {
    /// The shape of the whole tensor.
    pub shape: Vec<u64>,
    /// The first position in the first dimension.
    pub first_row: u64,
}

/// The fields of a state, with the names that begin with a prefix.
pub(super) fn flattened(
    optimizer: &dyn DynOptimizer,
    prefix: &str,
    state: Option<&DynState>,
) -> StateSink {
    let mut sink = StateSink::default();
    if let Some(state) = state {
        optimizer.state_flatten(prefix, state, &mut sink);
    }
    sink
}

/// The prefix of every name of a saved state.
pub(super) const PREFIX: &str = "optimizer.";

/// The values of a parameter. Cost: a pass over all names.
fn of_path<'a, T>(
    values: &'a [(String, T)],
    path: &ParameterPath,
) -> impl Iterator<Item = &'a (String, T)> + use<'a, T> {
    let prefix = format!("{PREFIX}{path}.");
    let values = values.iter();
    values.filter(move |(name, _)| name.starts_with(&prefix))
}

impl SavedOptimizer for SavedState {
    fn fields(&self, path: &ParameterPath) -> StateFields {
        let tensors = of_path(&self.tensors, path).map(|(name, data)| StateTensor {
            name: name.clone(),
            shape: data.shape().iter().map(|d| *d as u64).collect(),
            dtype: data.dtype(),
        });
        let tensors = tensors.collect();
        let scalars = of_path(&self.scalars, path).cloned().collect();
        StateFields { tensors, scalars }
    }

    fn read(
        &self,
        paths: &[&ParameterPath],
        _: &dyn Observer,
    ) -> Result<Vec<Vec<TensorData>>, AnyError> {
        let read = paths.iter().map(|path| {
            let tensors = of_path(&self.tensors, path);
            tensors.map(|(_, data)| data.clone()).collect()
        });
        Ok(read.collect())
    }
}
