//! Reads and replaces parameters between steps.

use std::collections::BTreeMap;
use std::hash::Hasher;

use tinderbox_deferred::{ParameterPath, Values};
use tinderbox_fake::{DynTensor, FakeError};
use twox_hash::XxHash3_64;

use super::driver::{Condition, Driver};
use crate::RankError;
use crate::error::Result;
use crate::runtime::caught::action_error;
use crate::runtime::digest::joined;
use crate::runtime::ranks::To;
use crate::runtime::stage::{set_all, set_trains};
use crate::schedule::RankIndex;

/// What a call changes, in the digest that processes compare in each step.
#[derive(Clone, Copy)]
enum Change {
    Freeze = 0,
    Unfreeze = 1,
    Set = 2,
}

impl Driver {
    /// Returns the parameters of all ranks.
    pub(super) fn values(&mut self, to: To) -> Result<Values> {
        let held = self.on_ranks(|_, stages| {
            // All replicas have the same values.
            let stages = stages.iter().filter(|stage| stage.is_of_first_replica());
            let values = stages.flat_map(|stage| stage.parameters().values());
            let values = values.map(|(path, value)| (path.clone(), value));
            values.collect::<Vec<_>>()
        })?;
        let all = self.ranks.exchange_named(to, held)?;
        if self.kept.is_some() {
            // So that nobody is a call ahead of more than one other.
            self.ranks.wait_for_all()?;
        }
        Ok(all.collect())
    }

    /// Returns the value of a parameter that is no clone, from the rank that owns it.
    pub(super) fn value_of(&mut self, path: ParameterPath) -> Result<DynTensor> {
        let found = self.on_ranks(move |_, stages| {
            let stages = stages.iter().filter(|stage| stage.is_of_first_replica());
            let owned = stages.map(|stage| stage.parameters());
            let mut owned = owned.filter_map(|module| Some(module.value(module.position(&path)?)));
            owned.next()
        })?;
        let value: Vec<DynTensor> = found.into_iter().flatten().collect();
        let all = self.ranks.exchange(To::All, (), value)?;
        let value = all.into_iter().flat_map(|(_, values)| values).next();
        Ok(value.expect("every parameter has an owner"))
    }

    /// Replaces values of parameters by position in the table, on every rank that holds them.
    pub(super) fn set(&mut self, values: Vec<(usize, DynTensor)>) -> Result<()> {
        self.note_change(Change::Set, values.iter().map(|(position, _)| *position));
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
        // Parameters that ranks of several processes hold are replaced on all of them.
        for (position, value) in self.ranks.exchange_named(To::All, values)? {
            parts.entry(position).or_default().push(value);
        }
        let whole = parts.into_iter();
        let whole = whole.map(|(position, parts)| Ok((position, joined(parts)?)));
        let whole = whole.collect::<Result<Vec<_>, FakeError>>();
        let whole = whole.map_err(|source| {
            self.ranks.notified(RankError::Unreadable {
                what: "the averages of the parameters",
                source: Box::new(source),
            })
        })?;
        self.state.is_averaged = is_averaged;
        self.set(whole)
    }

    /// Sets whether parameters train, by position in the table.
    pub(super) fn set_trains(&mut self, positions: &[usize], trains: bool) -> Result<()> {
        let change = if trains {
            Change::Unfreeze
        } else {
            Change::Freeze
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
    fn note_change(&mut self, change: Change, positions: impl Iterator<Item = usize>) {
        let kind = change as u64;
        // In any order: it may be the order of a map.
        let of_change = positions.map(|position| {
            let mut hasher = XxHash3_64::with_seed(kind);
            hasher.write_usize(position);
            hasher.finish()
        });
        let sum = of_change.fold(kind, u64::wrapping_add);
        self.state.changes = self.state.changes.rotate_left(1).wrapping_add(sum);
    }
}
