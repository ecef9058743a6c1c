//! What one process has, to continue without others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};
use tinderbox_world::World;

use super::backups::Backups;
use super::calls::Call;
use super::driver::Driver;
use super::report::Recovered;
use super::settings::Recovery;
use super::snapshot::Snapshot;
use crate::runtime::builder::PipelineBuilder;
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
    pub(super) drivers: BTreeMap<u64, Driver>,
    /// The newest version that all keepers have; `None` until they have the first.
    pub(super) kept: Option<u64>,
}

impl Ledger {
    pub(super) fn new(world: &World, keepers: Vec<RankIndex>, backups: Arc<Backups>) -> Self {
        Self {
            generation: world.generation(),
            rank: world.rank(),
            processes: world.size(),
            keepers,
            backups,
            snapshots: BTreeMap::new(),
            drivers: BTreeMap::new(),
            kept: None,
        }
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

    /// The newest version that this process keeps of all ranks of which it keeps some.
    pub(super) fn newest(&self) -> u64 {
        let newest = self.of_others().map(|rank| {
            let versions = self.backups.versions(rank);
            versions.last().copied().unwrap_or(INITIAL)
        });
        newest.min().unwrap_or(u64::MAX)
    }

    /// The newest version that this process has itself.
    pub(super) fn newest_own(&self) -> u64 {
        let newest = self.snapshots.keys().next_back();
        newest.copied().unwrap_or(INITIAL)
    }

    /// All keepers have a version: what is older is dropped.
    fn keep_from(&mut self, version: u64) {
        self.kept = Some(version);
        self.snapshots = self.snapshots.split_off(&version);
        self.drivers = self.drivers.split_off(&version);
        self.backups.keep_from(version);
    }

    fn holdings(&self) -> Holdings {
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

/// What a process needs to continue without others.
pub(in crate::runtime) struct RecoveryState<M, B> {
    pub(super) settings: Recovery,
    pub(super) world: World,
    /// Builds the pipeline for another plan. Its own plan is the first.
    pub(super) builder: PipelineBuilder<M, B>,
    pub(super) ledger: Ledger,
    /// The ledgers before the last losses, the newest last, until the present one has a version that all keepers have.
    pub(super) earlier: Vec<Ledger>,
    /// The number of calls so far that changed something.
    pub(super) version: u64,
    /// The calls since the oldest version.
    pub(super) log: Vec<Call<M, B>>,
    /// The number of calls so far in which all processes took part.
    pub(super) calls: u64,
    /// Whether a call runs.
    pub(super) is_running: bool,
    /// Whether the state of lost ranks is lost, and no restore is complete since.
    pub(in crate::runtime) is_state_lost: bool,
    pub(super) recovered: Vec<Recovered>,
    /// Sends the last snapshot.
    pub(super) sending: Option<JoinHandle<()>>,
}

impl<M, B> RecoveryState<M, B> {
    pub(super) fn new(
        settings: Recovery,
        world: World,
        builder: PipelineBuilder<M, B>,
        ledger: Ledger,
    ) -> Self {
        Self {
            settings,
            world,
            builder,
            ledger,
            earlier: Vec::new(),
            version: INITIAL,
            log: Vec::new(),
            calls: 0,
            is_running: false,
            is_state_lost: false,
            recovered: Vec::new(),
            sending: None,
        }
    }

    /// All keepers have a version, if it is newer than the one that they had.
    pub(super) fn all_keep(&mut self, version: u64) {
        if version > self.ledger.kept.unwrap_or(INITIAL) {
            self.ledger.keep_from(version);
            self.earlier.clear();
            self.prune();
        }
    }

    /// Drops calls that are never repeated.
    pub(super) fn prune(&mut self) {
        let oldest = self.ledgers().filter_map(|ledger| ledger.kept).min();
        let oldest = oldest.unwrap_or(INITIAL);
        self.log.retain(|call| call.is_after(oldest));
    }

    /// The ledgers of each numbering of the processes, the newest first.
    pub(super) fn ledgers(&self) -> impl Iterator<Item = &Ledger> {
        std::iter::once(&self.ledger).chain(self.earlier.iter().rev())
    }

    /// What this process has, under each numbering of the processes.
    pub(super) fn holdings(&self) -> Vec<Holdings> {
        self.ledgers().map(Ledger::holdings).collect()
    }

    /// Goes back to the numbering of a generation.
    pub(super) fn use_ledger(&mut self, generation: u32) {
        while self.ledger.generation > generation
            && let Some(earlier) = self.earlier.pop()
        {
            self.ledger = earlier;
        }
    }

    /// Waits until the last snapshot was read, so that nothing uses the channel any more.
    pub(super) fn join_sending(&mut self) {
        if let Some(sending) = self.sending.take() {
            // A panic was reported by its hook.
            let _ = sending.join();
        }
    }
}

impl<M, B> Drop for RecoveryState<M, B> {
    fn drop(&mut self) {
        self.join_sending();
        self.world.end_recovery();
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
