//! The snapshots and calls with which one process continues without others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tinderbox_world::{World, machine};

use crate::error::Result;
use crate::runtime::driver::{CallKind, Driver, DriverState};
use crate::runtime::snapshots::{Backups, KeptSnapshots, Snapshot};
use crate::schedule::RankIndex;

/// The version without snapshots, because every process can recompute it.
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
    /// The newest version that all keepers have; `None` until they have the first one.
    pub(super) kept: Option<u64>,
}

impl Ledger {
    /// Begins a ledger for a numbering of the processes. All processes call this.
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

    /// The keeper of this rank; `None` for a process without a stage.
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

    /// The newest own version of this process.
    pub(super) fn newest_own(&self) -> u64 {
        let newest = self.snapshots.keys().next_back();
        newest.copied().unwrap_or(INITIAL)
    }

    /// Drops all versions before one that all keepers have.
    pub(super) fn keep_from(&mut self, version: u64) {
        self.kept = Some(version);
        self.snapshots = self.snapshots.split_off(&version);
        self.drivers = self.drivers.split_off(&version);
        self.backups.keep_from(version);
    }

    pub(super) fn holdings(&self) -> Holdings {
        let initial = self.kept.filter(|kept| *kept == INITIAL);
        let own = self.snapshots.keys().copied().chain(initial);
        let of_others = self.of_others();
        let of_others = of_others.map(|rank| (rank, self.backups.versions(rank)));
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

/// Returns the newest version with a remaining snapshot of every rank.
///
/// # Errors
///
/// The ranks without a remaining snapshot; the lost ranks if each rank has one, and there is no common version.
pub(super) fn newest_version(ranks: usize, left: &[&Holdings]) -> Result<u64, Vec<RankIndex>> {
    let versions_of = |rank: RankIndex| -> BTreeSet<u64> {
        if let Some(own) = left.iter().find(|one| one.rank == rank) {
            return own.own.clone();
        }
        let kept = left.iter().flat_map(|one| &one.of_others);
        let kept = kept.filter(|(of, _)| *of == rank);
        kept.flat_map(|(_, versions)| versions).copied().collect()
    };
    // Processes without a stage, too: they go back to the state of their driver.
    let own = left.iter().map(|one| one.own.clone());
    let of_ranks: Vec<BTreeSet<u64>> = (0..ranks).map(RankIndex::new).map(versions_of).collect();
    let common = of_ranks.iter().cloned().chain(own);
    let common = common.reduce(|all, one| &all & &one);
    if let Some(newest) = common.and_then(|mut common| common.pop_last()) {
        return Ok(newest);
    }
    // Every process recomputes the initial state.
    if left.iter().all(|one| one.own.contains(&INITIAL)) {
        return Ok(INITIAL);
    }
    let all = || (0..ranks).map(RankIndex::new);
    let gone = all().filter(|rank| of_ranks[rank.index()].is_empty());
    let gone: Vec<RankIndex> = gone.collect();
    let is_left = |rank: RankIndex| left.iter().any(|one| one.rank == rank);
    Err(match gone.is_empty() {
        true => all().filter(|rank| !is_left(*rank)).collect(),
        false => gone,
    })
}

/// A call that may be repeated.
pub(crate) struct Entry<C> {
    /// The version before the call.
    version: u64,
    pub(crate) kind: CallKind,
    /// The number of the last joint call: this one, or the one before a call that the process makes alone.
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

    /// Adds a call, with the version after it and the number of joint calls.
    pub(crate) fn add(&mut self, call: C, kind: CallKind, version: u64, number: u64) {
        self.entries.push(Arc::new(Entry {
            version: version - u64::from(kind.changes()),
            kind,
            number,
            call,
        }));
    }

    /// Drops the calls that changed nothing, because every process has made them.
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

    /// The calls to repeat from a version: calls that changed something, and the joint calls that some processes have not made.
    pub(crate) fn to_repeat(&self, version: u64, least: u64) -> Vec<Arc<Entry<C>>> {
        let due = self.entries.iter().filter(|entry| {
            let is_missing = entry.kind.is_of_all() && entry.number > least;
            entry.version >= version && (entry.kind.changes() || is_missing)
        });
        due.cloned().collect()
    }
}

/// Returns the keeper of each rank, given the machine of each process. A keeper is on another machine if there is one. Of
/// several processes, the next one that keeps the fewest snapshots is chosen. There are at least two processes.
fn keepers(machines: &[String], ranks: usize) -> Vec<RankIndex> {
    let processes = machines.len();
    let mut kept = vec![0; processes];
    let keeper = |rank: usize| {
        let others = (1..processes).map(|distance| (rank + distance) % processes);
        let best = others.min_by_key(|other| (machines[*other] == machines[rank], kept[*other]));
        let best = best.expect("there is another process");
        kept[best] += 1;
        RankIndex::new(best)
    };
    (0..ranks).map(keeper).collect()
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

    /// There are three ranks, and each keeps the snapshots of the one before.
    #[test]
    fn the_newest_version_of_all_ranks_is_chosen() {
        let zero = |own| holdings(0, own, &[(2, &[4])]);
        let two = |own| holdings(2, own, &[(1, &[4, 5])]);
        check(&[zero(&[4, 5]), two(&[4, 5])], Ok(5));
        check(&[zero(&[4, 5]), two(&[4])], Ok(4));
        // Rank 0 has gone back to version 3, which no other rank has.
        check(&[zero(&[3]), two(&[4, 5])], Err(&[1]));
        // The keeper of rank 1 is lost as well; rank 0 keeps rank 2.
        check(&[zero(&[4, 5])], Err(&[1]));
        // Nothing was kept yet.
        check(&[holdings(0, &[0], &[])], Ok(0));
        check(&[holdings(0, &[0, 1], &[]), holdings(1, &[0], &[])], Ok(0));
    }

    fn check_keepers(machines: &str, ranks: usize, expected: &[usize]) {
        let names: Vec<String> = machines.chars().map(String::from).collect();
        let found: Vec<usize> = keepers(&names, ranks)
            .iter()
            .map(|rank| rank.index())
            .collect();
        assert_eq!(found, expected, "{machines}");
        for (rank, keeper) in found.iter().enumerate() {
            let is_elsewhere = names.iter().any(|name| *name != names[rank]);
            assert_eq!(names[rank] != names[*keeper], is_elsewhere, "{machines}");
        }
    }

    /// The letter of each process is its machine.
    #[test]
    fn a_keeper_is_on_another_machine() {
        check_keepers("AA", 2, &[1, 0]);
        check_keepers("AAA", 3, &[1, 2, 0]);
        check_keepers("AAA", 2, &[1, 2]);
        check_keepers("AABB", 4, &[2, 3, 0, 1]);
        check_keepers("ABAB", 4, &[1, 2, 3, 0]);
        // With a spare on each, and after one of eight was lost.
        check_keepers("AABBAB", 4, &[2, 3, 4, 0]);
        check_keepers("AAABBBB", 7, &[3, 4, 5, 0, 1, 2, 0]);
        check_keepers("AAB", 3, &[2, 2, 0]);
    }
}
