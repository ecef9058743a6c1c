//! Reads and replaces parameters between steps, and restores them with the state of the optimizer.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::sync::Arc;

use tinderbox_deferred::{Parameter, ParameterPath, Source};
use tinderbox_fake::{DynTensor, FakeError};
use tinderbox_world::with_causes;
use twox_hash::XxHash3_64;

use super::command::NamedValues;
use super::driver::{Condition, Driver};
use crate::error::Result;
use crate::runtime::caught::action_error;
use crate::runtime::digest::joined;
use crate::runtime::ranks::To;
use crate::runtime::stage::{StatesFound, set_all, set_trains};
use crate::schedule::RankIndex;
use crate::{PipelineError, RankError, RestoreError, SavedOptimizer, StateError};

/// A change of parameters, in the digest that processes compare in each step.
#[derive(Clone, Copy)]
enum ParameterChange {
    Freeze = 0,
    Unfreeze = 1,
    Set = 2,
}

/// The number of parameters that a warning names.
const NAMED: usize = 10;

impl Driver {
    /// Returns the parameters of all ranks, or one of them that is no clone.
    pub(super) fn values(&mut self, to: To, only: Option<ParameterPath>) -> Result<NamedValues> {
        let held = self.on_ranks(move |_, stages| {
            // All replicas have the same values.
            let stages = stages.iter().filter(|stage| stage.setup.replica == 0);
            let values = stages.flat_map(|stage| stage.parameters().values());
            let wanted = values.filter(|(path, _)| only.as_ref().is_none_or(|only| only == *path));
            let values = wanted.map(|(path, value)| (path.clone(), value));
            values.collect::<Vec<_>>()
        })?;
        let all = self.ranks.exchange_named(to, held)?;
        if self.kept.is_some() {
            // So that no process is more than one call ahead of another.
            self.ranks.wait_for_all()?;
        }
        Ok(all.collect())
    }

    /// Replaces values of parameters by position in the table, on every rank that holds them.
    pub(super) fn set(&mut self, values: Vec<(usize, DynTensor)>) -> Result<()> {
        let positions = values.iter().map(|(position, _)| *position);
        self.note_change(ParameterChange::Set, positions);
        let set = self.on_ranks(move |_, stages| set_all(stages, values.iter()))?;
        let mut results = set.into_iter().zip(self.ranks.first().index()..);
        match results.find_map(|(result, rank)| Some((RankIndex::new(rank), result.err()?))) {
            None => Ok(()),
            // Some ranks may have the new values, and others not.
            Some((rank, source)) => {
                self.condition = Condition::Stopped;
                let failed = action_error(rank, (None, None), "SET PARAMETERS", source);
                Err(self.ranks.notified(failed))
            }
        }
    }

    /// Replaces the parameters by their averages, or the averages by the parameters.
    pub(super) fn exchange_averages(&mut self, is_averaged: bool) -> Result<()> {
        let values = self.on_ranks(move |_, stages| {
            let values = stages.iter_mut().map(|stage| match is_averaged {
                true => stage.averages(),
                false => stage.take_averaged(),
            });
            values.flatten().collect::<Vec<_>>()
        })?;
        // Replicas have the rows of a divided parameter, in their order.
        let mut parts: BTreeMap<usize, Vec<DynTensor>> = BTreeMap::new();
        // Parameters that several processes hold are replaced on all of them.
        for (position, value) in self.ranks.exchange_named(To::All, values)? {
            parts.entry(position).or_default().push(value);
        }
        let whole = parts.into_iter();
        let whole = whole.map(|(position, parts)| Ok((position, joined(parts)?)));
        let whole = whole.collect::<Result<Vec<_>, FakeError>>();
        let what = "the averages of the parameters";
        let whole = whole.map_err(|source| {
            let source = Box::new(source);
            self.ranks.notified(RankError::Unreadable { what, source })
        })?;
        self.state.is_averaged = is_averaged;
        self.set(whole)
    }

    /// Sets whether parameters train, by position in the table.
    pub(super) fn set_trains(&mut self, positions: &[usize], trains: bool) -> Result<()> {
        let change = match trains {
            true => ParameterChange::Unfreeze,
            false => ParameterChange::Freeze,
        };
        self.note_change(change, positions.iter().copied());
        for position in positions {
            match trains {
                true => self.state.frozen.remove(position),
                false => self.state.frozen.insert(*position),
            };
        }
        let positions = positions.to_vec();
        self.on_ranks(move |_, stages| set_trains(stages, &positions, trains))
            .map(drop)
    }

    /// Adds a change of parameters to the digest that processes compare in each step.
    fn note_change(&mut self, change: ParameterChange, positions: impl Iterator<Item = usize>) {
        let kind = change as u64;
        // In any order, because it may be the order of a map.
        let of_change = positions.map(|position| {
            let mut hasher = XxHash3_64::with_seed(kind);
            hasher.write_usize(position);
            hasher.finish()
        });
        let sum = of_change.fold(kind, u64::wrapping_add);
        self.state.changes = self.state.changes.rotate_left(1).wrapping_add(sum);
    }

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
            let mut found = StatesFound::default();
            let mut stages = stages.iter();
            let checked =
                stages.try_for_each(|stage| stage.check_restore(&*saved.0, &*saved.1, &mut found));
            (found, checked)
        })?;
        let (states, checked): (Vec<_>, Vec<_>) = checked.into_iter().unzip();
        self.agreed(checked, |rank, source| StateError::Restore { rank, source })?;
        // The ranks are sound again when every rank has replaced everything.
        self.condition = Condition::PartlyRestored;
        let saved = (source.clone(), state.clone());
        let restored = self.ranks.ask("restore a saved state", move |_, stages| {
            let mut stages = stages.iter_mut();
            stages.try_for_each(|stage| stage.restore(&*saved.0, &*saved.1))
        })?;
        let partly = |rank, source| StateError::PartlyRestored { rank, source };
        self.agreed(restored, partly)?;
        self.condition = Condition::Sound;
        self.warn_of_missing(&states);
        Ok(())
    }

    /// Warns of parameters that have no saved state though others have one, their optimizers keep one, and a step updates them.
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
                && self.programs.example.gradients()[*position].is_some()
        };
        let updated = self.table.iter().enumerate();
        let updated = updated.filter(is_updated).map(|(_, parameter)| parameter);
        let missing = updated.filter(|parameter| optimizers.keeps_state(parameter));
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

    /// Fails if a rank failed: with the error of the lowest rank of this process, or else of another process.
    ///
    /// # Errors
    ///
    /// [`StateError::RestoreElsewhere`] when all ranks of this process can continue, and one of another can't.
    fn agreed(
        &mut self,
        results: Vec<Result<(), RestoreError>>,
        failed: impl Fn(RankIndex, RestoreError) -> StateError,
    ) -> Result<()> {
        let mut results = results.into_iter().zip(self.ranks.first().index()..);
        let own = results.find_map(|(result, rank)| Some((RankIndex::new(rank), result.err()?)));
        let reason = own.as_ref().map(|(_, error)| with_causes(error));
        let all = self.ranks.agree(reason);
        if let Some((rank, source)) = own {
            return Err(failed(rank, source).into());
        }
        match all? {
            None => Ok(()),
            Some((rank, reason)) => Err(StateError::RestoreElsewhere { rank, reason }.into()),
        }
    }
}
