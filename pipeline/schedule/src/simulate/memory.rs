//! The bytes that a rank holds, action by action.

use tinderbox_ids::RankIndex;

use super::costs::Costs;
use crate::action::Action;
use crate::arithmetic::add;
use crate::lists::{Schedule, ScheduleMode};
use crate::task::{Compute, Task};

/// The bytes of a rank while each of its actions runs, and after it.
type Bytes = Vec<(u64, u64)>;

/// Returns the bytes of a rank.
///
/// Programs hold what [`StageCosts::held_after`](super::StageCosts::held_after) returns, allocated when they begin and
/// freed when they end. Without a backward pass a forward frees its own activations.
fn bytes_of(schedule: &Schedule, costs: &Costs, rank: RankIndex, resident: u64) -> Bytes {
    let stage = |task: &Task| costs.of_stage(task.stage);
    let is_training = schedule.mode == ScheduleMode::Training;
    let mut held = resident;
    let walk = schedule.actions(rank).iter().map(|action| {
        let tasks = || action.tasks().iter();
        for task in tasks().filter(|task| task.compute == Compute::Forward) {
            held = stage(task).held_after(held, Compute::Forward);
        }
        let during = held;
        for task in tasks() {
            held = match task.compute {
                Compute::Forward if is_training => held,
                Compute::Forward => stage(task).held_after(held, Compute::Backward),
                compute => stage(task).held_after(held, compute),
            };
        }
        (during.max(held), held)
    });
    walk.collect()
}

/// Returns the bytes of every rank.
pub(super) fn bytes_of_all(schedule: &Schedule, costs: &Costs) -> impl Iterator<Item = Bytes> {
    let mut resident = vec![0_u64; schedule.world_size()];
    for (rank, stage) in schedule.stage_to_rank.iter().zip(&costs.stages) {
        if let Some(resident) = resident.get_mut(rank.index()) {
            add(resident, stage.resident_bytes);
        }
    }
    let ranks = resident.into_iter().enumerate();
    ranks.map(|(rank, resident)| bytes_of(schedule, costs, RankIndex::new(rank), resident))
}

/// Returns the maximum bytes that each rank holds at a time. They depend only on the order of its actions, not
/// on their times.
pub fn peak_bytes(schedule: &Schedule, costs: &Costs) -> Vec<u64> {
    let peak = |bytes: Bytes| bytes.into_iter().map(|(during, _)| during).max();
    let ranks = bytes_of_all(schedule, costs);
    ranks.map(|bytes| peak(bytes).unwrap_or(0)).collect()
}

/// Returns per rank the largest number of micro-batches that wait for their backward, each counted once per
/// stage of the rank.
pub fn peak_activations(schedule: &Schedule) -> Vec<usize> {
    let most = match schedule.mode {
        ScheduleMode::Training => usize::MAX,
        ScheduleMode::ForwardOnly => 1,
    };
    let ranks = schedule.ranks.iter();
    ranks.map(|list| most_waiting(list).min(most)).collect()
}

/// Returns the largest number of forwards without the end of their backward.
pub(crate) fn most_waiting<'a>(list: impl IntoIterator<Item = &'a Action>) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for action in list {
        let count =
            |which: fn(&Task) -> bool| action.tasks().iter().filter(|task| which(task)).count();
        // The forward of a pair is first, because its backward frees nothing before the pair has ended.
        now += count(|task| task.compute == Compute::Forward);
        most = most.max(now);
        now = now.saturating_sub(count(|task| task.compute.ends_backward()));
    }
    most
}
