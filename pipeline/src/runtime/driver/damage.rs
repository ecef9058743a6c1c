//! Finds values that changed in the memory of a rank between two steps, or that differ between replicas, and repairs them from
//! another replica.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use tinderbox_fake::DynTensor;
use twox_hash::XxHash3_64;

use super::driver::{Condition, Driver, Repaired};
use crate::error::Result;
use crate::runtime::digest::{AnyError, of_value};
use crate::runtime::ranks::To;
use crate::runtime::stage::{Recorded, Stage, set_all};
use crate::schedule::RankIndex;
use crate::{DamageError, PipelineError};

/// The name of the values in the error of a check.
const CHECKED: &str = "a value to check";

impl Stage {
    /// Records the digests of its values, until the program changes one.
    pub(crate) fn record(&mut self) -> Result<(), AnyError> {
        self.recorded = Some(self.digests()?);
        Ok(())
    }

    fn digests(&self) -> Result<Recorded, AnyError> {
        let mut parameters = Vec::new();
        for (position, value) in self.held.values() {
            parameters.push((position, of_value(&value)?));
        }
        let saved = self.optimizer_snapshot().to_host()?;
        let mut state = XxHash3_64::with_seed(0);
        for (_, data) in &saved.tensors {
            state.write(data.as_bytes());
        }
        let state = state.finish();
        Ok(Recorded { parameters, state })
    }

    /// Compares its values with the recorded digests; `None` if there are none.
    fn check(&self, rank: RankIndex) -> Result<Option<Checked>, AnyError> {
        let Some(recorded) = &self.recorded else {
            return Ok(None);
        };
        let (now, setup) = (self.digests()?, &self.setup);
        let pairs = recorded.parameters.iter().zip(&now.parameters);
        let changed = pairs.filter(|(before, now)| before != now);
        let table = setup.table.iter().as_slice();
        // A device may have computed other parameters itself, with its own rounding.
        let equal = recorded.parameters.iter();
        let equal = equal.filter(|(position, _)| table[*position].trainable);
        Ok(Some(Checked {
            rank,
            changed: changed.map(|((position, _), _)| *position).collect(),
            is_state_changed: recorded.state != now.state,
            recorded: match setup.layout.replicas {
                1 => Vec::new(),
                _ => equal.copied().collect(),
            },
        }))
    }
}

/// The result of the check of a stage.
#[derive(Serialize, Deserialize)]
struct Checked {
    rank: RankIndex,
    /// The parameters that have changed since the last step, by position in the table.
    changed: Vec<usize>,
    is_state_changed: bool,
    /// The digests that must be equal in all replicas: the digests of the parameters that train, 10 to 20 bytes each.
    /// Empty without other replicas.
    recorded: Vec<(usize, u64)>,
}

/// Parameters that ranks hold, by position in the table.
type RankParameters = BTreeSet<(RankIndex, usize)>;

impl Driver {
    /// Records the values of the ranks after a step, if the next step is checked.
    pub(super) fn record_memory(&mut self) -> Result<()> {
        if !self.detects_damage() {
            return Ok(());
        }
        let recorded = self.read_on_ranks(CHECKED, |_, stages| {
            stages.iter_mut().try_for_each(Stage::record)
        });
        recorded.map(drop)
    }

    fn detects_damage(&self) -> bool {
        let every = self.options.detect_damage;
        every.is_some_and(|every| self.state.step.is_multiple_of(every))
    }

    /// Compares the values of the ranks with the recorded ones and with the other replicas. Repairs values that another replica
    /// still has.
    pub(super) fn check_unchanged(&mut self) -> Result<()> {
        if !self.detects_damage() {
            return Ok(());
        }
        let found = self.read_on_ranks(CHECKED, |rank, stages| {
            let checked = stages.iter().map(|stage| stage.check(rank));
            let found = checked.filter_map(Result::transpose);
            found.collect::<Result<Vec<_>, _>>()
        })?;
        let all = self.ranks.exchange(To::All, found, Vec::new())?;
        let found = all.into_iter().flat_map(|(of_ranks, _)| of_ranks);
        let found: Vec<Checked> = found.flatten().collect();
        let mut stages = found.iter();
        if let Some(one) = stages.find(|one| one.is_state_changed) {
            return Err(self.damaged(one.rank, None));
        }
        let bad = self.damage(&found)?;
        match bad.is_empty() {
            true => Ok(()),
            false => self.repair(&bad),
        }
    }

    /// The parameters that have changed, or whose recorded value differs from the value of most replicas.
    fn damage(&mut self, found: &[Checked]) -> Result<RankParameters> {
        let mut bad = RankParameters::new();
        // The ranks with each digest, by the place in a replica and the parameter.
        let mut holders: BTreeMap<_, BTreeMap<u64, BTreeSet<RankIndex>>> = BTreeMap::new();
        let layout = &self.programs.layout;
        for one in found {
            let (_, place) = layout.place_of(one.rank);
            bad.extend(one.changed.iter().map(|position| (one.rank, *position)));
            for (position, digest) in &one.recorded {
                let of_value = holders.entry((place, *position)).or_default();
                of_value.entry(*digest).or_default().insert(one.rank);
            }
        }
        for ((_, position), values) in holders {
            let is_most = |ranks: &BTreeSet<RankIndex>| 2 * ranks.len() > layout.replicas;
            // They differ, and no value is the same on most.
            if values.values().filter(|ranks| is_most(ranks)).count() != 1 {
                let ranks: BTreeSet<RankIndex> = values.into_values().flatten().collect();
                self.condition = Condition::Stopped;
                return Err(DamageError::Differs {
                    ranks: ranks.into_iter().collect(),
                    step: self.state.step,
                    path: self.path_of(position),
                }
                .into());
            }
            let others = values.into_values().filter(|ranks| !is_most(ranks));
            bad.extend(others.flatten().map(|rank| (rank, position)));
        }
        Ok(bad)
    }

    /// Replaces parameters of ranks by the parameters of the same ranks of other replicas.
    fn repair(&mut self, bad: &RankParameters) -> Result<()> {
        let mut donors = RankParameters::new();
        for (rank, position) in bad {
            let layout = &self.programs.layout;
            let (_, place) = layout.place_of(*rank);
            let same = (0..layout.replicas).map(|replica| layout.rank_at(replica, place));
            let donor = { same }.find(|other| !bad.contains(&(*other, *position)));
            let donor = donor.ok_or_else(|| self.damaged(*rank, Some(*position)))?;
            donors.insert((donor, *position));
        }
        let given = self.on_ranks(move |rank, stages| {
            let held = stages.iter().flat_map(|stage| stage.held.values());
            let given = held.filter(|(position, _)| donors.contains(&(rank, *position)));
            given.collect::<Vec<(usize, DynTensor)>>()
        })?;
        let values: Vec<(usize, DynTensor)> = self.ranks.exchange_named(To::All, given)?.collect();
        let wanted = bad.clone();
        self.read_on_ranks(CHECKED, move |rank, stages| {
            let wanted = |(position, _): &&_| wanted.contains(&(rank, *position));
            Ok(set_all(stages, values.iter().filter(wanted))?)
        })?;
        if self.kept.is_some() {
            let taken = self.take_snapshot()?;
            self.kept.as_mut().expect("it was there").renewed = taken;
        }
        for (rank, position) in bad {
            let (step, path) = (self.state.step, self.path_of(*position));
            tracing::warn!(
                rank = rank.index(),
                step,
                parameter = %path,
                "a value was wrong in memory, and was replaced by the value of another replica"
            );
            let rank = *rank;
            self.repaired.push(Repaired { step, rank, path });
        }
        Ok(())
    }

    /// The error of a change that can't be repaired. The pipeline stops, because its values are wrong.
    fn damaged(&mut self, rank: RankIndex, position: Option<usize>) -> PipelineError {
        self.condition = Condition::Stopped;
        DamageError::Changed {
            rank,
            step: self.state.step,
            path: position.map(|position| self.path_of(position)),
        }
        .into()
    }
}
