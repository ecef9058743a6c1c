//! Restores saved parameters and optimizer state into the ranks.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;

use burn::module::Module;
use burn::optim::DynState;
use burn::tensor::{DType, TensorData};
use burn_pack::Scalar;
use tinderbox_deferred::{Observer, Parameter, ParameterPath, Source};
use tinderbox_world::with_causes;

use super::optimizer::OptimizerState;
use super::pipeline::{Condition, Pipeline};
use super::recovery::CallKind;
use crate::batch::Batch;
use crate::schedule::RankIndex;
use crate::{PipelineError, RestoreError};

/// The number of parameters that a warning names.
const NAMED: usize = 10;

/// The saved state of an optimizer, by parameter. Its fields are available before any value is read.
pub trait SavedOptimizer: Send + Sync {
    /// Returns the fields that were saved for a parameter; empty if the optimizer had no state for it.
    /// Reads no values.
    fn fields(&self, path: &ParameterPath) -> StateFields;

    /// Returns the state of a parameter as it is, if it is in memory and of the optimizer that will continue with it: its
    /// [`fields`](Self::fields) are empty then.
    fn state(&self, _: &ParameterPath) -> Option<DynState> {
        None
    }

    /// Returns the values of the parameter's tensors, in the order of its [`fields`](Self::fields).
    /// Reports bytes to the observer as they are read.
    ///
    /// # Errors
    ///
    /// When a value can't be read.
    fn read(
        &self,
        path: &ParameterPath,
        observer: &dyn Observer,
    ) -> Result<Vec<TensorData>, Box<dyn Error + Send + Sync>>;

    /// As [`read`](Self::read) of each parameter. By default the same; many small values are read faster together.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    fn read_all(
        &self,
        paths: &[&ParameterPath],
        observer: &dyn Observer,
    ) -> Result<Vec<Vec<TensorData>>, Box<dyn Error + Send + Sync>> {
        let read = paths.iter().map(|path| self.read(path, observer));
        read.collect()
    }

    /// As [`read_all`](Self::read_all), for values that are read again and again, of which the system's cache of files can't
    /// hold all: one with files reads around it. By default the same.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    fn read_uncached(
        &self,
        paths: &[&ParameterPath],
        observer: &dyn Observer,
    ) -> Result<Vec<Vec<TensorData>>, Box<dyn Error + Send + Sync>> {
        self.read_all(paths, observer)
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

/// For which parameters of a rank a saved state of optimizers has states.
#[derive(Debug, Default)]
pub(super) struct StatesFound {
    /// Whether there is one.
    pub(super) is_any: bool,
    /// The parameters without.
    pub(super) without: Vec<ParameterPath>,
}

impl StateFields {
    /// Returns whether nothing was saved.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty() && self.scalars.is_empty()
    }

    /// The bytes of the tensors.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = self.tensors.iter().map(|tensor| {
            let elements: u64 = tensor.shape.iter().product();
            elements * tensor.dtype.size() as u64
        });
        bytes.sum()
    }

    /// The names of tensors and scalars.
    pub(super) fn names(&self) -> Vec<String> {
        let tensors = self.tensors.iter().map(|tensor| &tensor.name);
        let scalars = self.scalars.iter().map(|(name, _)| name);
        tensors.chain(scalars).cloned().collect()
    }
}

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Replaces the parameters and the optimizer's state of every rank by saved ones, in place. A
    /// pipeline without an optimizer reads no state. Set the step with [`resume_at`](Self::resume_at). A `tracing` warning
    /// names parameters that have no saved state though others have, if their optimizers keep one.
    ///
    /// All ranks check names, shapes and dtypes before any of them changes anything. The request fails
    /// only without progress, as described at [timeout](super::PipelineBuilder::timeout).
    ///
    /// Memory: in addition to what the pipeline holds afterwards, at most the size of the largest
    /// parameter or state of a parameter for each rank, or 1 MiB, and the memory of the source; with [replicas](crate::Plan::replicas), at most the state of
    /// the largest parameter, which each rank that updates a part of it reads whole.
    ///
    /// # Errors
    ///
    /// [`PipelineError::Restore`] if the saved state does not fit: nothing has changed.
    /// [`PipelineError::PartlyRestored`] if a value can't be read: some values are new and others old,
    /// and the pipeline refuses every request but another restore.
    pub fn restore(
        &mut self,
        source: impl Source + 'static,
        state: impl SavedOptimizer + 'static,
    ) -> Result<(), PipelineError> {
        let saved = Arc::new((source, state));
        self.recovering(CallKind::Changes, move |pipeline| {
            pipeline.restore_now(&saved)
        })
    }

    fn restore_now(
        &mut self,
        saved: &Arc<(impl Source + 'static, impl SavedOptimizer + 'static)>,
    ) -> Result<(), PipelineError> {
        if self.condition == Condition::Stopped {
            return Err(PipelineError::Stopped);
        }
        self.check_not_averaged()?;
        let saved = saved.clone();
        let found = saved.clone();
        let checked = self.crew.call("check a saved state", move |_, stages| {
            let (source, state) = &*found;
            let mut of_rank = StatesFound::default();
            for stage in stages {
                let found = stage.check_restore(source, state)?;
                of_rank.is_any |= found.is_any;
                of_rank.without.extend(found.without);
            }
            Ok::<_, RestoreError>(of_rank)
        })?;
        let mut states = Vec::new();
        let checked = checked.into_iter();
        let checked = checked.map(|result| result.map(|found| states.push(found)));
        let checked = checked.collect();
        let checked = self.agreed(checked)?;
        if let Some((rank, source)) = checked {
            return Err(PipelineError::Restore { rank, source });
        }
        // The pipeline is sound again when every rank has replaced everything.
        self.condition = Condition::PartlyRestored;
        let restored = self.crew.call("restore a saved state", move |_, stages| {
            let (source, state) = &*saved;
            stages
                .iter_mut()
                .try_for_each(|stage| stage.restore(source, state))
        })?;
        let restored = self.agreed(restored)?;
        if let Some((rank, source)) = restored {
            return Err(PipelineError::PartlyRestored { rank, source });
        }
        self.condition = Condition::Sound;
        self.warn_of_missing(&states);
        if let Some(recovery) = &mut self.recovery {
            recovery.is_state_lost = false;
        }
        Ok(())
    }

    /// Warns of parameters without a saved state, if others have one, their optimizers keep one, and a step updates them.
    fn warn_of_missing(&self, found: &[StatesFound]) {
        let Some(optimizers) = &self.settings.optimizers else {
            return;
        };
        if !found.iter().any(|found| found.is_any) {
            return;
        }
        // Replicas have parts of one parameter.
        let without: BTreeSet<&ParameterPath> =
            found.iter().flat_map(|found| &found.without).collect();
        let is_updated = |(position, parameter): &(usize, &Parameter)| {
            without.contains(&parameter.path)
                && parameter.trainable
                && !self.frozen.contains(position)
                && self.programs.has_gradient(*position)
        };
        let updated = self.model.parameters().iter().enumerate();
        let updated = updated.filter(is_updated).map(|(_, parameter)| parameter);
        let missing = updated.filter(|parameter| {
            let optimizer = &*optimizers.of(&parameter.path).optimizer;
            OptimizerState::keeps_state(optimizer, parameter.shape.len())
        });
        let missing: Vec<&str> = missing.map(|parameter| parameter.path.as_str()).collect();
        if !missing.is_empty() {
            tracing::warn!(
                count = missing.len(),
                first = ?&missing[..missing.len().min(NAMED)],
                "the saved state has no state of the optimizer for parameters that are updated, and has one for others: they \
                 begin without, because they were not updated before, or by another optimizer"
            );
        }
    }

    /// Returns the lowest rank of this process that failed, with its error.
    ///
    /// # Errors
    ///
    /// [`PipelineError::RestoreElsewhere`] when all ranks of this process can continue, and one of another can't.
    fn agreed(
        &mut self,
        results: Vec<Result<(), RestoreError>>,
    ) -> Result<Option<(RankIndex, RestoreError)>, PipelineError> {
        let first = self.crew.own().map_or(0, RankIndex::index);
        let mut results = results.into_iter().zip(first..);
        let own = results.find_map(|(result, rank)| Some((RankIndex::new(rank), result.err()?)));
        let reason = own.as_ref().map(|(_, error)| with_causes(error));
        match (own, self.crew.agree(reason)) {
            (None, Ok(Some((rank, reason)))) => {
                Err(PipelineError::RestoreElsewhere { rank, reason })
            }
            (None, Err(error)) => Err(error),
            (own, _) => Ok(own),
        }
    }
}
