//! The step that a plan is for.

use serde::{Deserialize, Serialize};
use tinderbox_schedule::{Dependencies, RankIndex, Schedule, ScheduleKind};

/// A training step: its schedule, micro-batches and optimizer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct Step {
    /// The schedule.
    pub schedule: ScheduleKind,
    /// The number of micro-batches of a step, of all replicas.
    pub micro_batches: usize,
    /// The number of replicas of every stage, which divide the micro-batches among themselves.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub replicas: usize,
    /// The number of ranks that hold a shard of every stage of a replica: 1, because this version runs no shards.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub shards: usize,
    /// Bytes of optimizer state per byte of a trainable parameter: 2 for Adam in the precision of the
    /// parameters.
    pub optimizer_states: u64,
    /// Whether a stage may recompute its activations in the backward to fit the memory of its rank.
    pub may_recompute: bool,
}

impl Step {
    /// Creates a step with Adam that keeps every activation.
    pub const fn new(schedule: ScheduleKind, micro_batches: usize) -> Self {
        Self {
            schedule,
            micro_batches,
            replicas: 1,
            shards: 1,
            optimizer_states: 2,
            may_recompute: false,
        }
    }

    /// Returns the number of replicas, at least 1.
    pub(crate) const fn share(&self) -> usize {
        if self.replicas == 0 { 1 } else { self.replicas }
    }

    /// Returns the number of micro-batches of the replica that has most.
    pub const fn per_replica(&self) -> usize {
        self.micro_batches.div_ceil(self.share())
    }

    /// Returns the maximum number of gradients that a rank holds of each of its parameters. Replicas sum the gradients of
    /// micro-batches by a tree of 8 groups, or of one group for each replica, and receive at most one more gradient.
    pub const fn gradients_held(&self) -> u64 {
        match self.replicas {
            0 | 1 => 1,
            2 => 4,
            4 => 3,
            _ => 2,
        }
    }

    /// Returns the dependencies with replicas, if the step has any.
    pub fn with_replicas(&self, dependencies: Dependencies) -> Dependencies {
        match self.replicas {
            0 | 1 => dependencies,
            _ => dependencies.with_replicas(),
        }
    }

    /// Returns the lists of the step's schedule, if it places stages on these ranks.
    pub fn lists(&self, stage_to_rank: &[RankIndex]) -> Option<Schedule> {
        let ranks = stage_to_rank.iter().map(|rank| rank.index());
        let ranks = ranks.max()?.saturating_add(1);
        let chunks = stage_to_rank.len() / ranks;
        let lists = self.schedule.generate(ranks, chunks, self.per_replica());
        let lists = lists.ok()?;
        (lists.stage_to_rank == stage_to_rank).then_some(lists)
    }
}

/// Returns the number of replicas or shards in a file that has none.
const fn one() -> usize {
    1
}

/// Returns whether a number is 1: a file leaves it out.
const fn is_one(number: &usize) -> bool {
    *number == 1
}

/// The assignment of blocks to stages and of stages to ranks, and the stages that recompute
/// activations.
///
/// Stages are numbered in an order in which they can run: no value flows from a stage to a lower one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct Partition {
    /// The stage of each block.
    pub stage_of: Vec<usize>,
    /// The rank of each stage.
    pub stage_to_rank: Vec<RankIndex>,
    /// Whether each stage recomputes its activations in the backward.
    pub recompute: Vec<bool>,
}

impl Partition {
    /// Creates contiguous stages: stage `k` begins with block `starts[k]`, and `starts[0]` is 0.
    pub fn contiguous(
        blocks: usize,
        starts: &[usize],
        stage_to_rank: Vec<RankIndex>,
        recompute: Vec<bool>,
    ) -> Self {
        let mut stage_of = vec![0; blocks];
        for (stage, start) in starts.iter().enumerate() {
            let after = stage_of.iter_mut().skip(*start);
            after.for_each(|of| *of = stage);
        }
        Self {
            stage_of,
            stage_to_rank,
            recompute,
        }
    }

    /// Returns the number of stages.
    pub fn stages(&self) -> usize {
        self.stage_to_rank.len()
    }
}

#[cfg(test)]
impl Step {
    /// Returns the step with recomputation allowed.
    pub(crate) const fn with_recomputation(self) -> Self {
        Self {
            may_recompute: true,
            ..self
        }
    }
}
