//! Digests of what the ranks hold: to compare runs, and to find values that changed in memory between two steps, or that differ
//! between replicas, and repair them from another replica.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use tinderbox_deferred::{NumericFingerprint, ParameterPath, ParameterTable};
use tinderbox_fake::{DynTensor, FakeError, dtype_name};
use twox_hash::XxHash3_64;

use super::driver::{Condition, Driver, Repaired};
use crate::error::Result;
use crate::runtime::clip::rows_per_sum;
use crate::runtime::digest::{ReadError, of_value, with_bytes};
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

/// Digests of every parameter and of the optimizer's state: 64 bits each, of the bytes of the values.
///
/// They do not depend on the number of ranks, stages and replicas, so two runs can be compared step by step, to find where
/// they differ first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateDigest {
    /// The number of training steps done.
    pub step: u64,
    /// Every parameter in the order of the table, clones left out.
    pub parameters: Vec<(ParameterPath, u64)>,
    /// Every tensor and number of the optimizer's state, sorted by its name, `optimizer.<path>.<field>`.
    pub state: Vec<(String, u64)>,
    /// What the CPU of the process that reports it computes; empty in a digest of an earlier version. It is no part of
    /// [`value`](Self::value) and of the differences.
    #[serde(default, skip_serializing_if = "NumericFingerprint::is_empty")]
    pub numerics: NumericFingerprint,
}

impl StateDigest {
    /// Returns a digest of all.
    pub fn value(&self) -> u64 {
        let mut hasher = XxHash3_64::with_seed(self.step);
        let digests = self.all().into_iter();
        digests.for_each(|(_, digest)| hasher.write_u64(digest));
        hasher.finish()
    }

    /// Returns the names of what differs from another digest: parameters in the order of the table, then parts of the
    /// optimizer's state, then what the other one has alone.
    pub fn differences<'a>(&'a self, other: &'a Self) -> Vec<&'a str> {
        let (own, others) = (self.all(), other.all());
        let known: BTreeMap<&str, u64> = others.iter().copied().collect();
        let names: BTreeSet<&str> = own.iter().map(|(name, _)| *name).collect();
        let changed = own
            .iter()
            .filter(|(name, digest)| known.get(name) != Some(digest));
        let added = others.iter().filter(|(name, _)| !names.contains(name));
        changed.chain(added).map(|(name, _)| *name).collect()
    }

    /// All names, with their digests.
    fn all(&self) -> Vec<(&str, u64)> {
        let parameters = self.parameters.iter();
        let parameters = parameters.map(|(path, digest)| (path.as_str(), *digest));
        let state = self.state.iter();
        let state = state.map(|(name, digest)| (name.as_str(), *digest));
        parameters.chain(state).collect()
    }
}

/// The digests of some rows of a tensor. The rows of a replica are divided where the rows of a digest are.
#[derive(Serialize, Deserialize)]
struct Rows {
    name: String,
    first_row: u64,
    /// Of the whole tensor.
    shape: Vec<u64>,
    dtype: String,
    digests: Vec<u64>,
}

/// The digests of whole rows of a tensor, at most a few MiB each.
fn of_rows(bytes: &[u8], rows: u64, shape: &[u64]) -> Vec<u64> {
    let row = bytes.len() as u64 / rows.max(1);
    let length = (rows_per_sum(shape) * row).max(1) as usize;
    bytes.chunks(length).map(XxHash3_64::oneshot).collect()
}

impl Rows {
    fn of(name: String, value: &DynTensor) -> Result<Self, FakeError> {
        let shape: Vec<u64> = value.shape().iter().map(|size| *size as u64).collect();
        let rows = shape.first().copied().unwrap_or(1);
        let digests = with_bytes(value, |bytes| of_rows(bytes, rows, &shape))?;
        Ok(Self {
            name,
            first_row: 0,
            dtype: dtype_name(value.dtype()).to_owned(),
            shape,
            digests,
        })
    }

    /// The rows of the parameters that a stage owns, of the first replica, and of the optimizer's state on any.
    fn of_stage(stage: &Stage) -> Result<(Vec<Self>, Vec<Self>), ReadError> {
        let owned = stage.parameters().values();
        let owned = owned.filter(|_| stage.is_of_first_replica());
        let parameters = owned.map(|(path, value)| Self::of(path.to_string(), &value));
        let parameters = parameters.collect::<Result<Vec<_>, _>>()?;
        let saved = stage.optimizer_snapshot().to_host()?;
        let tensors = saved.tensors.into_iter().map(|(name, data)| {
            let rows = data.shape().first().map_or(1, |rows| *rows as u64);
            let part = saved.parts.get(&name);
            let shape = match part {
                Some(part) => part.shape.clone(),
                None => data.shape().iter().map(|size| *size as u64).collect(),
            };
            Self {
                first_row: part.map_or(0, |part| part.first_row),
                dtype: dtype_name(data.dtype()).to_owned(),
                digests: of_rows(data.as_bytes(), rows, &shape),
                name,
                shape,
            }
        });
        let numbers = saved.scalars.iter().map(|(name, number)| Self {
            name: name.clone(),
            first_row: 0,
            shape: Vec::new(),
            dtype: "number".to_owned(),
            digests: vec![XxHash3_64::oneshot(format!("{number:?}").as_bytes())],
        });
        Ok((parameters, tensors.chain(numbers).collect()))
    }
}

/// The digest of each tensor, from the digests of its rows on all ranks.
fn joined(all: impl Iterator<Item = Rows>) -> BTreeMap<String, u64> {
    let mut by_name: BTreeMap<String, BTreeMap<u64, Rows>> = BTreeMap::new();
    for rows in all {
        by_name
            .entry(rows.name.clone())
            .or_default()
            .insert(rows.first_row, rows);
    }
    let digest = |parts: BTreeMap<u64, Rows>| {
        let mut hasher = XxHash3_64::with_seed(0);
        for (first_row, rows) in parts {
            if first_row == 0 {
                hasher.write(rows.dtype.as_bytes());
                rows.shape.iter().for_each(|size| hasher.write_u64(*size));
            }
            rows.digests
                .iter()
                .for_each(|digest| hasher.write_u64(*digest));
        }
        hasher.finish()
    };
    let named = by_name.into_iter();
    named.map(|(name, parts)| (name, digest(parts))).collect()
}

impl Driver {
    /// Returns digests of all parameters and of the optimizer's state.
    pub(super) fn digest(&mut self) -> Result<StateDigest> {
        let own = self.read_on_ranks("a value to digest", |_, stages| {
            let stages = stages.iter().map(Rows::of_stage);
            stages.collect::<Result<Vec<_>, ReadError>>()
        })?;
        let all = self.ranks.exchange(To::All, own, Vec::new())?;
        let of_stages = all.into_iter().flat_map(|(of_ranks, _)| of_ranks).flatten();
        let (parameters, state): (Vec<_>, Vec<_>) = of_stages.unzip();
        let of_paths = joined(parameters.into_iter().flatten());
        let parameters = self.table.distinct().filter_map(|parameter| {
            let digest = of_paths.get(parameter.path.as_str())?;
            Some((parameter.path.clone(), *digest))
        });
        Ok(StateDigest {
            step: self.state.step,
            parameters: parameters.collect(),
            state: joined(state.into_iter().flatten()).into_iter().collect(),
            numerics: NumericFingerprint::of_process().clone(),
        })
    }
}
