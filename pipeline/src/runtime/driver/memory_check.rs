//! Finds values that changed in memory between two steps, or that differ between replicas, and repairs them from another
//! replica.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use tinderbox_deferred::ParameterTable;
use tinderbox_fake::DynTensor;
use twox_hash::XxHash3_64;

use super::driver::{Condition, Driver, Repaired};
use crate::error::Result;
use crate::runtime::digest::{ReadError, of_value};
use crate::runtime::ranks::To;
use crate::runtime::stage::{Recorded, Stage, set_all};
use crate::schedule::RankIndex;
use crate::{DamageError, PipelineError};

/// What can't be read if a check fails.
const CHECKED: &str = "a value to check";

impl Stage {
    /// Records the digests of what it holds, until the next change by the program.
    pub(crate) fn record(&mut self) -> Result<(), ReadError> {
        self.recorded = Some(self.digests()?);
        Ok(())
    }

    fn digests(&self) -> Result<Recorded, ReadError> {
        let mut parameters = Vec::new();
        for (position, value) in self.held.values() {
            parameters.push((position, of_value(&value)?));
        }
        let saved = self.optimizer_snapshot().to_host()?;
        let mut state = XxHash3_64::with_seed(0);
        for (_, data) in &saved.tensors {
            state.write(data.as_bytes());
        }
        Ok(Recorded {
            parameters,
            state: state.finish(),
        })
    }

    /// Adds the positions of parameters that differ from what was recorded, whether the state of the optimizer does, and the
    /// digest of those that were recorded and train.
    fn compare(&self, table: &ParameterTable, found: &mut Found) -> Result<(), ReadError> {
        let Some(recorded) = &self.recorded else {
            return Ok(());
        };
        let now = self.digests()?;
        let pairs = recorded.parameters.iter().zip(&now.parameters);
        let changed = pairs.filter(|(before, now)| before != now);
        let changed = changed.map(|((position, _), _)| *position);
        found.parameters.extend(changed);
        found.state |= recorded.state != now.state;
        let mut digest = XxHash3_64::with_seed(found.digest);
        for (_, of_parameter) in recorded.trained(table) {
            digest.write_u64(*of_parameter);
        }
        found.digest = digest.finish();
        Ok(())
    }
}

/// What a rank has found.
#[derive(Default, Serialize, Deserialize)]
struct Found {
    rank: usize,
    /// Positions in the table.
    parameters: Vec<usize>,
    state: bool,
    /// The digest of the parameters that train, as they were recorded.
    digest: u64,
}

impl Driver {
    /// Records what the ranks hold after a step, if the next one is checked.
    pub(super) fn record_memory(&mut self) -> Result<()> {
        if !self.checks_memory() {
            return Ok(());
        }
        let recorded = self.read_on_ranks(CHECKED, |_, stages| {
            let mut stages = stages.iter_mut();
            stages.try_for_each(Stage::record)
        });
        recorded.map(drop)
    }

    fn checks_memory(&self) -> bool {
        let every = self.options.check_memory;
        every.is_some_and(|every| self.state.step.is_multiple_of(every))
    }

    /// Compares what the ranks hold with what they recorded, and with the other replicas, and repairs what a replica still
    /// has.
    pub(super) fn check_unchanged(&mut self) -> Result<()> {
        if !self.checks_memory() {
            return Ok(());
        }
        let table = self.table.clone();
        let found = self.read_on_ranks(CHECKED, move |rank, stages| {
            let mut found = Found {
                rank: rank.index(),
                ..Found::default()
            };
            let mut stages = stages.iter();
            stages.try_for_each(|stage| stage.compare(&table, &mut found))?;
            Ok(found)
        })?;

        let all = self.ranks.exchange(To::All, found, Vec::new())?;
        let found: Vec<Found> = all.into_iter().flat_map(|(found, _)| found).collect();
        let bad = found.iter().flat_map(|one| {
            let positions = one.parameters.iter();
            positions.map(|position| (one.rank, *position))
        });
        let mut bad: BTreeSet<(usize, usize)> = bad.collect();
        if let Some(one) = found.iter().find(|one| one.state) {
            return Err(self.damaged(one.rank, None));
        }
        let mut digests: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
        for one in found {
            let place = one.rank % self.ranks_of_replica();
            digests.entry(place).or_default().insert(one.digest);
        }
        if digests.values().any(|digests| digests.len() > 1) {
            bad.extend(self.minority()?);
        }
        match bad.is_empty() {
            true => Ok(()),
            false => self.repair(&bad),
        }
    }

    /// The ranks and positions of parameters that were recorded with another value than in most replicas.
    fn minority(&mut self) -> Result<BTreeSet<(usize, usize)>> {
        let table = self.table.clone();
        let recorded = self.on_ranks(move |rank, stages| {
            let stages = stages.iter().filter_map(|stage| stage.recorded.as_ref());
            let trained = stages.flat_map(|recorded| recorded.trained(&table).copied());
            (rank.index(), trained.collect::<Vec<(usize, u64)>>())
        })?;
        let all = self.ranks.exchange(To::All, recorded, Vec::new())?;
        let ranks = self.ranks_of_replica();
        // The ranks with each digest, by the place in a replica and the parameter.
        let mut holders: BTreeMap<(usize, usize), BTreeMap<u64, BTreeSet<usize>>> = BTreeMap::new();
        for (rank, parameters) in all.into_iter().flat_map(|(recorded, _)| recorded) {
            for (position, digest) in parameters {
                let of_value = holders.entry((rank % ranks, position)).or_default();
                of_value.entry(digest).or_default().insert(rank);
            }
        }
        let mut bad = BTreeSet::new();
        for ((_, position), values) in holders {
            let is_most = |ranks: &BTreeSet<usize>| 2 * ranks.len() > self.settings.replicas;
            if values.values().filter(|ranks| is_most(ranks)).count() != 1 {
                let ranks: BTreeSet<usize> = values.into_values().flatten().collect();
                return Err(self.differs(ranks, position));
            }
            let others = values.into_values().filter(|ranks| !is_most(ranks));
            bad.extend(others.flatten().map(|rank| (rank, position)));
        }
        Ok(bad)
    }

    /// Replaces parameters of ranks, by position in the table, by the parameters of ranks at the same place of other
    /// replicas.
    fn repair(&mut self, bad: &BTreeSet<(usize, usize)>) -> Result<()> {
        let ranks = self.ranks_of_replica();
        let mut donors = BTreeSet::new();
        for (rank, position) in bad {
            let same = (0..self.settings.replicas).map(|replica| replica * ranks + rank % ranks);
            let donor = { same }.find(|other| !bad.contains(&(*other, *position)));
            let donor = donor.ok_or_else(|| self.damaged(*rank, Some(*position)))?;
            donors.insert((donor, *position));
        }
        let given = self.on_ranks(move |rank, stages| {
            let of_rank = donors.iter().filter(|(donor, _)| *donor == rank.index());
            let values = of_rank.filter_map(|(_, position)| {
                let mut held = stages.iter().flat_map(|stage| stage.held.values());
                held.find(|(held, _)| held == position)
            });
            values.collect::<Vec<(usize, DynTensor)>>()
        })?;
        let values = self.ranks.exchange_named(To::All, given)?;
        let values: Vec<(usize, DynTensor)> = values.collect();
        let wanted = bad.clone();
        self.read_on_ranks(CHECKED, move |rank, stages| {
            let wanted = |(position, _): &&_| wanted.contains(&(rank.index(), *position));
            Ok(set_all(stages, values.iter().filter(wanted))?)
        })?;
        if self.kept.is_some() {
            let taken = self.take_snapshot()?;
            self.kept.as_mut().expect("it was there").renewed = taken;
        }
        for (rank, position) in bad {
            let path = self.path_of(*position);
            tracing::warn!(
                rank,
                step = self.state.step,
                parameter = %path,
                "a value was wrong in memory, and was replaced by the value of another replica"
            );
            self.repaired.push(Repaired {
                step: self.state.step,
                rank: RankIndex::new(*rank),
                path,
            });
        }
        Ok(())
    }

    /// The error of a change that can't be repaired. The values are wrong, so nothing continues with them.
    fn damaged(&mut self, rank: usize, position: Option<usize>) -> PipelineError {
        self.condition = Condition::Stopped;
        DamageError::Changed {
            rank: RankIndex::new(rank),
            step: self.state.step,
            path: position.map(|position| self.path_of(position)),
        }
        .into()
    }

    /// The error of replicas that hold different values, none of which most of them hold.
    fn differs(&mut self, ranks: BTreeSet<usize>, position: usize) -> PipelineError {
        self.condition = Condition::Stopped;
        DamageError::Differs {
            ranks: ranks.into_iter().map(RankIndex::new).collect(),
            step: self.state.step,
            path: self.path_of(position),
        }
        .into()
    }
}
