//! Restores saved parameters and optimizer state into the ranks.

use std::collections::BTreeSet;
use std::sync::Arc;

use tinderbox_deferred::{Parameter, ParameterPath, Source};
use tinderbox_world::with_causes;

use super::driver::{Condition, Driver};
use crate::error::Result;
use crate::runtime::optimizer::{SavedOptimizer, keeps_state};
use crate::runtime::stage::StatesFound;
use crate::schedule::RankIndex;
use crate::{PipelineError, RestoreError, StateError};

/// The number of parameters that a warning names.
const NAMED: usize = 10;

impl Driver {
    /// Replaces the parameters and the optimizer's state of every rank, after all have checked that the saved ones fit.
    pub(super) fn restore(
        &mut self,
        source: &Arc<dyn Source>,
        state: &Arc<dyn SavedOptimizer>,
    ) -> Result<()> {
        if self.condition == Condition::Stopped {
            return Err(PipelineError::Stopped);
        }
        self.check_not_averaged()?;
        let saved = (source.clone(), state.clone());
        let checked = self.ranks.ask("check a saved state", move |_, stages| {
            let mut of_rank = StatesFound::default();
            for stage in stages {
                let found = stage.check_restore(&*saved.0, &*saved.1)?;
                of_rank.is_any |= found.is_any;
                of_rank.without.extend(found.without);
            }
            Ok::<_, RestoreError>(of_rank)
        })?;
        let mut states = Vec::new();
        let checked = checked.into_iter();
        let checked = checked.map(|result| result.map(|found| states.push(found)));
        let checked = checked.collect();
        if let Some((rank, source)) = self.agreed(checked)? {
            return Err(StateError::Restore { rank, source }.into());
        }
        // The ranks are sound again when every one has replaced everything.
        self.condition = Condition::PartlyRestored;
        let saved = (source.clone(), state.clone());
        let restored = self.ranks.ask("restore a saved state", move |_, stages| {
            let mut stages = stages.iter_mut();
            stages.try_for_each(|stage| stage.restore(&*saved.0, &*saved.1))
        })?;
        if let Some((rank, source)) = self.agreed(restored)? {
            return Err(StateError::PartlyRestored { rank, source }.into());
        }
        self.condition = Condition::Sound;
        self.warn_of_missing(&states);
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
                && !self.state.frozen.contains(position)
                && self.programs.has_gradient(*position)
        };
        let updated = self.table.iter().enumerate();
        let updated = updated.filter(is_updated).map(|(_, parameter)| parameter);
        let missing = updated.filter(|parameter| {
            let optimizer = &*optimizers.of(&parameter.path).optimizer;
            keeps_state(optimizer, parameter.shape.len())
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
    /// [`StateError::RestoreElsewhere`] when all ranks of this process can continue, and one of another can't.
    fn agreed(
        &mut self,
        results: Vec<Result<(), RestoreError>>,
    ) -> Result<Option<(RankIndex, RestoreError)>> {
        let first = self.ranks.first().index();
        let mut results = results.into_iter().zip(first..);
        let own = results.find_map(|(result, rank)| Some((RankIndex::new(rank), result.err()?)));
        let reason = own.as_ref().map(|(_, error)| with_causes(error));
        match (own, self.ranks.agree(reason)) {
            (None, Ok(Some((rank, reason)))) => {
                Err(StateError::RestoreElsewhere { rank, reason }.into())
            }
            (None, Err(error)) => Err(error),
            (own, _) => Ok(own),
        }
    }
}
