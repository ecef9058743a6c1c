//! Predicts a partition's step time, bubbles and memory with the simulator.

mod bound;
mod costs;
mod memory;
mod schedule;

pub use bound::lower_bound;
pub use costs::{PartitionCosts, StageBytes, partition_costs};
pub(crate) use memory::memory_of_ranks;
pub use memory::{RankMemory, UPDATE_VALUES};
pub(crate) use schedule::schedule_of;

use serde::{Deserialize, Serialize};
use tinderbox_schedule::arithmetic::{scaled, sum};
use tinderbox_schedule::{RankIndex, Schedule, StageCosts, StageIndex, Timeline, simulate};

use crate::{Infeasible, Machine, Partition, PlannerError, Step, Work};

/// The predicted times and memory of one rank in a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPrediction {
    /// The rank.
    pub rank: RankIndex,
    /// Nanoseconds in which it is busy.
    pub busy_ns: u64,
    /// Nanoseconds in which it is idle between its first action and its last.
    pub bubble_ns: u64,
    /// Its memory at its peak.
    pub memory: RankMemory,
}

/// The predicted time and memory of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// Nanoseconds of a step.
    pub step_ns: u64,
    /// The lower bound of the step time of any plan of this work on this machine, in nanoseconds.
    pub lower_bound_ns: u64,
    /// The fraction of all ranks' time in which they are idle, in thousandths.
    pub idle_permille: u64,
    /// The slowest stage.
    pub bottleneck: StageIndex,
    /// The nanoseconds of `F` and `B` of the slowest stage.
    pub bottleneck_ns: u64,
    /// Bytes that cross between ranks in a step, of all replicas.
    pub crossing_bytes: u64,
    /// Each rank of a replica.
    pub ranks: Vec<RankPrediction>,
}

impl Prediction {
    /// Returns the time of the step above the lower bound, in thousandths of the bound.
    pub fn gap_permille(&self) -> u64 {
        let above = self.step_ns.saturating_sub(self.lower_bound_ns);
        scaled(above, 1000, self.lower_bound_ns.max(1))
    }

    /// Returns the first rank that exceeds its memory limit, with its bytes.
    pub fn over_limit(&self, machine: &Machine) -> Option<Infeasible> {
        let excess = self.excesses(machine).next()?;
        Some(Infeasible::Rank {
            rank: excess.rank,
            needed: excess.needed,
            limit: excess.limit,
        })
    }

    /// Returns the ranks that exceed their memory limits.
    pub(crate) fn excesses(&self, machine: &Machine) -> impl Iterator<Item = Excess> {
        let limited = self.ranks.iter().filter_map(move |rank| {
            Some(Excess {
                rank: rank.rank,
                needed: rank.memory.total(),
                limit: machine.rank(rank.rank).memory_bytes?,
            })
        });
        limited.filter(|excess| excess.bytes() > 0)
    }
}

/// A rank that needs more memory than its limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Excess {
    pub(crate) rank: RankIndex,
    pub(crate) needed: u64,
    pub(crate) limit: u64,
}

impl Excess {
    /// Returns the bytes above the limit.
    pub(crate) const fn bytes(&self) -> u64 {
        self.needed.saturating_sub(self.limit)
    }

    /// Returns the bytes that it needs, in thousandths of its limit.
    pub(crate) fn permille(&self) -> u128 {
        u128::from(self.needed) * 1000 / u128::from(self.limit.max(1))
    }
}

/// A partition's schedule, simulated step and costs.
#[derive(Debug, Clone)]
pub struct Predicted {
    /// The compute actions of every rank.
    pub schedule: Schedule,
    /// The simulated step.
    pub timeline: Timeline,
    /// Costs, edges, ties.
    pub costs: PartitionCosts,
    /// The figures.
    pub prediction: Prediction,
}

/// Simulates a step of a partition.
///
/// If the stages are placed on the ranks as the step's schedule requires, they run under this schedule. Otherwise they run
/// under lists that [`auto`](tinderbox_schedule::auto()) finds for them.
///
/// # Errors
///
/// When the partition has no order in which it can run, or no schedule of its ranks fits their memory.
pub fn predict(
    work: &Work,
    machine: &Machine,
    step: &Step,
    partition: &Partition,
) -> Result<Predicted, PlannerError> {
    let costs = partition_costs(work, machine, step, partition);
    let bound = lower_bound(work, machine, step);
    predict_costs(machine, step, &partition.stage_to_rank, costs, bound)
}

/// Simulates a step of stages with known costs, with the lower bound of their work.
///
/// # Errors
///
/// The errors of [`predict`].
pub fn predict_costs(
    machine: &Machine,
    step: &Step,
    stage_to_rank: &[RankIndex],
    costs: PartitionCosts,
    lower_bound_ns: u64,
) -> Result<Predicted, PlannerError> {
    let (edges, simulated) = (&costs.dependencies, &costs.costs);
    let schedule = schedule_of(machine, step, stage_to_rank, edges, simulated)?;
    let timeline = simulate(&schedule, edges, simulated)?;
    let memory = memory_of_ranks(&schedule, &timeline, simulated, &costs.bytes);
    let ranks = timeline.ranks.iter().zip(memory).enumerate();
    let ranks = ranks.map(|(rank, (timeline, memory))| RankPrediction {
        rank: RankIndex::new(rank),
        busy_ns: timeline.busy(),
        bubble_ns: timeline.bubble(),
        memory,
    });
    let stages = costs.costs.stages.iter().enumerate();
    let time = |stage: &StageCosts| stage.forward.saturating_add(stage.backward);
    // The first of equally slow stages.
    let slowest = stages.rev().max_by_key(|(_, stage)| time(stage));
    let crossing = costs.costs.message_bytes.iter().filter(|(edge, _)| {
        let rank = |stage: StageIndex| stage_to_rank[stage.index()];
        rank(edge.from.stage) != rank(edge.to.stage)
    });
    let per_micro_batch = sum(crossing.map(|(_, bytes)| *bytes));
    // All replicas except one send the gradients of a parameter, and receive its new value.
    let exchanged = costs.costs.stages.iter().map(|stage| stage.exchanged_bytes);
    let exchanged = sum(exchanged).saturating_mul(2 * (step.share() as u64 - 1));
    let prediction = Prediction {
        step_ns: timeline.makespan(),
        lower_bound_ns,
        idle_permille: (timeline.idle_share() * 1000.0).round() as u64,
        bottleneck: StageIndex::new(slowest.map_or(0, |(index, _)| index)),
        bottleneck_ns: slowest.map_or(0, |(_, stage)| time(stage)),
        crossing_bytes: per_micro_batch
            .saturating_mul(step.micro_batches as u64)
            .saturating_add(exchanged),
        ranks: ranks.collect(),
    };
    Ok(Predicted {
        schedule,
        timeline,
        costs,
        prediction,
    })
}
