//! What one process has, to continue without others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tinderbox_world::{World, machine};

use super::keepers::keepers;
use crate::error::Result;
use crate::runtime::driver::{CallKind, Driver, DriverState};
use crate::runtime::snapshots::{Backups, KeptSnapshots, Snapshot};
use crate::schedule::RankIndex;

/// The version of which nothing is kept, because every process can make it again.
pub(super) const INITIAL: u64 = 0;

/// The snapshots that one process has, by their version, under one numbering of the processes.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The generation of the world that numbers them.
    pub(super) generation: u32,
    pub(super) rank: RankIndex,
    pub(super) processes: usize,
    /// The keeper of each rank.
    pub(super) keepers: Vec<RankIndex>,
    /// The snapshots of other ranks.
    pub(super) backups: Arc<Backups>,
    pub(super) snapshots: BTreeMap<u64, Snapshot>,
    pub(super) drivers: BTreeMap<u64, DriverState>,
    /// The newest version that all keepers have; `None` until they have the first.
    pub(super) kept: Option<u64>,
}

impl Ledger {
    /// Begins a ledger of a numbering of the processes. All processes call this.
    pub(super) fn begin(world: &World, backups: Arc<Backups>, driver: &mut Driver) -> Result<Self> {
        let machines = world.all_gather(machine())?;
        let ledger = Self {
            generation: world.generation(),
            rank: world.rank(),
            processes: machines.len(),
            keepers: match machines.len() {
                1 => Vec::new(),
                _ => keepers(&machines, driver.plan.world_size()),
            },
            backups: backups.clone(),
            snapshots: BTreeMap::new(),
            drivers: BTreeMap::new(),
            kept: None,
        };
        driver.kept = Some(KeptSnapshots {
            of: ledger.of_others().collect(),
            backups,
            of_all: None,
            renewed: None,
        });
        Ok(ledger)
    }

    /// The keeper of this rank; none for a process without a stage.
    pub(super) fn keeper(&self) -> Option<RankIndex> {
        self.keepers.get(self.rank.index()).copied()
    }

    /// The ranks whose snapshots this process keeps.
    pub(super) fn of_others(&self) -> impl Iterator<Item = RankIndex> {
        let ranks = self.keepers.iter().enumerate();
        let own = self.rank;
        let of_own = ranks.filter(move |(_, keeper)| **keeper == own);
        of_own.map(|(rank, _)| RankIndex::new(rank))
    }

    /// The newest version that this process has itself.
    pub(super) fn newest_own(&self) -> u64 {
        let newest = self.snapshots.keys().next_back();
        newest.copied().unwrap_or(INITIAL)
    }

    /// All keepers have a version: what is older is dropped.
    pub(super) fn keep_from(&mut self, version: u64) {
        self.kept = Some(version);
        self.snapshots = self.snapshots.split_off(&version);
        self.drivers = self.drivers.split_off(&version);
        self.backups.keep_from(version);
    }

    pub(super) fn holdings(&self) -> Holdings {
        let initial = self.kept.filter(|kept| *kept == INITIAL);
        let own = self.snapshots.keys().copied().chain(initial);
        let of_others = self
            .of_others()
            .map(|rank| (rank, self.backups.versions(rank)));
        Holdings {
            generation: self.generation,
            rank: self.rank,
            own: own.collect(),
            of_others: of_others.collect(),
        }
    }
}

/// The versions that a process has of itself and of other ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Holdings {
    pub(super) generation: u32,
    pub(super) rank: RankIndex,
    own: BTreeSet<u64>,
    of_others: Vec<(RankIndex, Vec<u64>)>,
}

/// Returns the newest version of which the snapshot of every rank is left; otherwise the ranks of which no snapshot is left, or,
/// if there is no common version, those that are lost.
pub(super) fn newest_version(ranks: usize, left: &[&Holdings]) -> Result<u64, Vec<RankIndex>> {
    let versions_of = |rank: RankIndex| -> BTreeSet<u64> {
        if let Some(own) = left.iter().find(|one| one.rank == rank) {
            return own.own.clone();
        }
        let kept = left.iter().flat_map(|one| &one.of_others);
        let kept = kept.filter(|(of, _)| *of == rank);
        kept.flat_map(|(_, versions)| versions).copied().collect()
    };
    // Also those without a stage: they go back to what their driver had.
    let own = left.iter().map(|one| one.own.clone());
    let of_ranks: Vec<BTreeSet<u64>> = (0..ranks).map(RankIndex::new).map(versions_of).collect();
    let common = of_ranks.iter().cloned().chain(own);
    let common = common.reduce(|all, one| &all & &one);
    if let Some(newest) = common.and_then(|mut common| common.pop_last()) {
        return Ok(newest);
    }
    // Every process makes the initial state again.
    if left.iter().all(|one| one.own.contains(&INITIAL)) {
        return Ok(INITIAL);
    }
    let all = || (0..ranks).map(RankIndex::new);
    let gone: Vec<RankIndex> = all()
        .filter(|rank| of_ranks[rank.index()].is_empty())
        .collect();
    let is_left = |rank: RankIndex| left.iter().any(|one| one.rank == rank);
    Err(match gone.is_empty() {
        true => all().filter(|rank| !is_left(*rank)).collect(),
        false => gone,
    })
}

/// A call that may be repeated.
pub(crate) struct Entry<C> {
    /// The version that it was made with.
    version: u64,
    pub(crate) kind: CallKind,
    /// Its number, or of a call that a process makes by itself, that of the call of all before it.
    number: u64,
    pub(crate) call: C,
}

/// The calls since the oldest version that a process may go back to.
pub(crate) struct CallLog<C> {
    entries: Vec<Arc<Entry<C>>>,
}

impl<C> CallLog<C> {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
        }
    }

    /// Adds a call, with the version after it and its number.
    pub(crate) fn add(&mut self, call: C, kind: CallKind, version: u64, number: u64) {
        self.entries.push(Arc::new(Entry {
            version: version - u64::from(kind.changes()),
            kind,
            number,
            call,
        }));
    }

    /// Drops the calls that changed nothing: every process has made them.
    pub(crate) fn drop_reads(&mut self) {
        self.entries.retain(|entry| entry.kind.changes());
    }

    /// Drops the calls before a version.
    pub(crate) fn prune(&mut self, oldest: u64) {
        self.entries.retain(|entry| entry.version >= oldest);
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// The calls to make again from a version: those that changed something, and the last one of all processes if some have
    /// made fewer than this process.
    pub(crate) fn to_repeat(&self, version: u64, least: u64) -> Vec<Arc<Entry<C>>> {
        let due = self.entries.iter().filter(|entry| {
            let is_missing = entry.kind.is_of_all() && entry.number > least;
            entry.version >= version && (entry.kind.changes() || is_missing)
        });
        due.cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holdings(rank: usize, own: &[u64], of_others: &[(usize, &[u64])]) -> Holdings {
        let of_others = of_others
            .iter()
            .map(|(rank, versions)| (RankIndex::new(*rank), versions.to_vec()));
        Holdings {
            generation: 0,
            rank: RankIndex::new(rank),
            own: own.iter().copied().collect(),
            of_others: of_others.collect(),
        }
    }

    fn check(left: &[Holdings], expected: Result<u64, &[usize]>) {
        let found = newest_version(3, &left.iter().collect::<Vec<_>>());
        let found = found.map_err(|ranks| ranks.iter().map(|rank| rank.index()).collect());
        assert_eq!(found, expected.map_err(<[usize]>::to_vec));
    }

    /// Of three ranks, each keeps the snapshots of the one before.
    #[test]
    fn the_newest_version_of_all_ranks_is_chosen() {
        let zero = |own| holdings(0, own, &[(2, &[4])]);
        let two = |own| holdings(2, own, &[(1, &[4, 5])]);
        check(&[zero(&[4, 5]), two(&[4, 5])], Ok(5));
        check(&[zero(&[4, 5]), two(&[4])], Ok(4));
        // Rank 0 has gone back to version 3, and nobody else has that.
        check(&[zero(&[3]), two(&[4, 5])], Err(&[1]));
        // The keeper of rank 1 is lost as well; rank 0 keeps rank 2.
        check(&[zero(&[4, 5])], Err(&[1]));
        // Nothing was kept yet.
        check(&[holdings(0, &[0], &[])], Ok(0));
        check(&[holdings(0, &[0, 1], &[]), holdings(1, &[0], &[])], Ok(0));
    }
}
