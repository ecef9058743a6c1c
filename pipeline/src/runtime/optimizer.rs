//! Burn's optimizers, driven one parameter at a time and keyed by path.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use burn::optim::{DynOptimizer, DynState, StateSink, StateSource};
use burn::tensor::{Device, Tensor, TensorData};
use burn_backend::ExecutionError;
use burn_dispatch::DispatchTensor;
use burn_pack::Scalar;
use tinderbox_deferred::ParameterPath;
use tinderbox_fake::{DynTensor, read_now};

use crate::RestoreError;

/// The state of an optimizer for some parameters, as named tensors and scalars. Names are
/// `optimizer.<path>.<field>`.
#[derive(Clone, Debug, Default)]
pub struct SavedState {
    /// Name and value of every tensor.
    pub tensors: Vec<(String, TensorData)>,
    /// Name and value of every scalar.
    pub scalars: Vec<(String, Scalar)>,
}

/// What every name of a saved state begins with.
const PREFIX: &str = "optimizer.";

impl SavedState {
    /// The parameter's part of the state.
    fn of(&self, path: &ParameterPath) -> (StateSource, Vec<String>) {
        let prefix = format!("{PREFIX}{path}.");
        let scalars = self
            .scalars
            .iter()
            .filter(|(name, _)| name.starts_with(&prefix))
            .cloned();
        let mut names: Vec<String> = scalars.clone().map(|(name, _)| name).collect();
        let mut source = StateSource::new(scalars.collect());
        for (name, data) in self
            .tensors
            .iter()
            .filter(|(name, _)| name.starts_with(&prefix))
        {
            names.push(name.clone());
            source.insert_tensor(name.clone(), data.clone());
        }
        (source, names)
    }
}

/// An optimizer and its state for the parameters of one stage, by position.
#[derive(Clone)]
pub struct OptimizerState {
    optimizer: Arc<dyn DynOptimizer>,
    states: Vec<Option<DynState>>,
}

impl OptimizerState {
    /// An optimizer that has not stepped yet.
    pub(crate) fn new(optimizer: Arc<dyn DynOptimizer>, parameters: usize) -> Self {
        Self {
            optimizer,
            states: vec![None; parameters],
        }
    }

    /// The parameter's next value.
    pub(crate) fn step(
        &mut self,
        position: usize,
        lr: f64,
        value: DynTensor,
        gradient: DynTensor,
    ) -> DynTensor {
        let rank = value.shape().num_dims();
        let state = self.states[position].take();
        // The bridge type is free of the rank, which goes beside it.
        let bridge = |tensor: DynTensor| Tensor::<1>::from_dispatch(tensor.into()).into_bridge();
        let (value, state) =
            self.optimizer
                .step_dyn(rank, lr, bridge(value), bridge(gradient), state);
        self.states[position] = state;
        DispatchTensor::from(value).into()
    }

    /// The state of all parameters, copied to the host.
    fn save<'a>(
        &self,
        paths: impl Iterator<Item = &'a ParameterPath>,
    ) -> Result<SavedState, ExecutionError> {
        let mut sink = StateSink::default();
        for (path, state) in paths.zip(&self.states) {
            if let Some(state) = state {
                self.optimizer
                    .state_flatten(&format!("{PREFIX}{path}"), state, &mut sink);
            }
        }
        let tensors = sink.tensors.into_iter();
        let tensors = tensors.map(|(name, data)| Ok((name, read_now(data)?)));
        Ok(SavedState {
            tensors: tensors.collect::<Result<_, _>>()?,
            scalars: sink.scalars,
        })
    }

    /// The same optimizer with a saved state. A parameter of which nothing was saved has none.
    pub(crate) fn restored<'a>(
        &self,
        parameters: impl Iterator<Item = (&'a ParameterPath, DynTensor)>,
        saved: &SavedState,
        device: &Device,
    ) -> Result<Self, RestoreError> {
        let states = parameters.map(|(path, value)| {
            let (mut source, found) = saved.of(path);
            if found.is_empty() {
                return Ok(None);
            }
            let rank = value.shape().num_dims();
            let prefix = format!("{PREFIX}{path}");
            let state = self
                .optimizer
                .state_unflatten(rank, &prefix, &mut source, device);
            // A state of another optimizer may have all that this one asks for, and more.
            let whole = state.filter(|state| {
                let mut sink = StateSink::default();
                self.optimizer.state_flatten(&prefix, state, &mut sink);
                let tensors = sink.tensors.into_iter().map(|(name, _)| name);
                let scalars = sink.scalars.into_iter().map(|(name, _)| name);
                tensors.chain(scalars).collect::<BTreeSet<_>>() == found.iter().cloned().collect()
            });
            match whole {
                Some(state) => Ok(Some(state)),
                None => Err(RestoreError::OptimizerState {
                    path: path.clone(),
                    found,
                }),
            }
        });
        let states = states.collect::<Result<_, _>>()?;
        Ok(Self {
            optimizer: self.optimizer.clone(),
            states,
        })
    }
}

/// The state of a stage's optimizer at one instant.
#[derive(Clone, Debug)]
pub struct OptimizerSnapshot {
    optimizer: Option<OptimizerState>,
    paths: Vec<ParameterPath>,
}

impl OptimizerSnapshot {
    pub(crate) fn new(optimizer: Option<OptimizerState>, paths: Vec<ParameterPath>) -> Self {
        Self { optimizer, paths }
    }

    /// The state, copied to the host; empty without an optimizer.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn to_host(&self) -> Result<SavedState, ExecutionError> {
        match &self.optimizer {
            Some(optimizer) => optimizer.save(self.paths.iter()),
            None => Ok(SavedState::default()),
        }
    }
}

impl fmt::Debug for OptimizerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stepped = self.states.iter().filter(|state| state.is_some()).count();
        f.debug_struct("OptimizerState")
            .field("parameters", &self.states.len())
            .field("stepped", &stepped)
            .finish_non_exhaustive()
    }
}
