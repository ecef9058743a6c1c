//! The placement of stages on ranks, and the inputs of every generator.

use serde::{Deserialize, Serialize};
use tinderbox_ids::{MicroBatchIndex, RankIndex, StageIndex};

use crate::action::Action;
use crate::task::{Compute, Task};

/// The placement of stages on ranks when a rank runs several: chunk c of a rank is its stage
/// among the stages c x ranks to (c+1) x ranks - 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Stage s is on rank s mod p: the last rank sends to the first one.
    Loop,
    /// Every second chunk is in descending order of ranks, so a rank at the end of one chunk begins the next one
    /// itself. With two chunks rank r has the stages r and 2p-1-r, and the first rank has the loss.
    V,
}

impl Placement {
    /// Returns the rank of every stage, in the order of the stages.
    pub fn stage_to_rank(self, ranks: usize, chunks: usize) -> Vec<RankIndex> {
        let chunks = 0..chunks;
        let all = chunks.flat_map(|chunk| (0..ranks).map(move |at| self.turn(at, chunk, ranks)));
        all.map(RankIndex::new).collect()
    }

    /// Returns the stage of a rank's chunk.
    pub(super) const fn stage(self, rank: usize, chunk: usize, ranks: usize) -> StageIndex {
        StageIndex::new(chunk * ranks + self.turn(rank, chunk, ranks))
    }

    /// Returns the rank at an index in a chunk, or the index of a rank. The map is its own inverse.
    const fn turn(self, at: usize, chunk: usize, ranks: usize) -> usize {
        match self {
            Self::V if chunk % 2 == 1 => ranks - 1 - at,
            Self::V | Self::Loop => at,
        }
    }
}

/// The compute actions of each rank.
pub(super) type Lists = Vec<Vec<Action>>;

/// The size of a training schedule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) placement: Placement,
    pub(super) ranks: usize,
    pub(super) chunks: usize,
    pub(super) micro_batches: usize,
}

impl Shape {
    /// Returns a program of a rank's chunk on a micro-batch.
    pub(super) const fn task(self, of: (usize, usize), compute: Compute, k: usize) -> Task {
        let stage = self.placement.stage(of.0, of.1, self.ranks);
        Task::new(stage, compute, MicroBatchIndex::new(k))
    }

    /// Returns a list of tasks per rank, as actions.
    pub(super) fn lists(self, list: impl Fn(usize) -> Vec<Task>) -> Lists {
        let actions = |rank| list(rank).into_iter().map(Action::Compute).collect();
        (0..self.ranks).map(actions).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements() {
        let cases = [
            (Placement::Loop, 3, 1, vec![0, 1, 2]),
            (Placement::Loop, 2, 3, vec![0, 1, 0, 1, 0, 1]),
            (Placement::V, 3, 2, vec![0, 1, 2, 2, 1, 0]),
            (Placement::V, 2, 3, vec![0, 1, 1, 0, 0, 1]),
            (Placement::V, 1, 2, vec![0, 0]),
            (Placement::V, 0, 2, vec![]),
        ];
        for (placement, ranks, chunks, expected) in cases {
            let found = placement.stage_to_rank(ranks, chunks);
            let expected: Vec<_> = expected.into_iter().map(RankIndex::new).collect();
            assert_eq!(found, expected, "{placement:?} {ranks} {chunks}");
            for (rank, chunk) in (0..ranks).flat_map(|r| (0..chunks).map(move |c| (r, c))) {
                let stage = placement.stage(rank, chunk, ranks);
                assert_eq!(found[stage.index()], RankIndex::new(rank));
            }
        }
    }
}
