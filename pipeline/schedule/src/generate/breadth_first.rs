//! Schedules that run a chunk for all micro-batches before the next one: GPipe, looped BFS, and
//! forward passes only.

use tinderbox_ids::{MicroBatchIndex, RankIndex, StageIndex};

use crate::action::Action;
use crate::lists::{Schedule, ScheduleMode};
use crate::task::Compute;

use super::placement::{Lists, Shape};

/// All forwards of the first chunk, then of the second, and so on; then all backwards of the last chunk,
/// then of the chunk before it, and so on.
pub(super) fn breadth_first(shape: Shape) -> Lists {
    let pass = |rank, chunk, compute| {
        (0..shape.micro_batches).map(move |k| shape.task((rank, chunk), compute, k))
    };
    shape.lists(|rank| {
        let forwards = (0..shape.chunks).flat_map(|chunk| pass(rank, chunk, Compute::Forward));
        let backwards = (0..shape.chunks).rev();
        let backwards = backwards.flat_map(|chunk| pass(rank, chunk, Compute::Backward));
        forwards.chain(backwards).collect()
    })
}

/// Returns forward passes only, on the ranks of any plan: each rank runs its stages in ascending order, each
/// for all micro-batches.
///
/// Ranks must be numbered without a gap. A rank whose number is not below the number of stages gets no
/// list, and [`verify`](crate::verify) rejects the schedule.
pub fn forward_only_on(stage_to_rank: &[RankIndex], micro_batches: usize) -> Schedule {
    let mut schedule = Schedule {
        name: "forward-only".to_owned(),
        micro_batches,
        ..Schedule::idle(ScheduleMode::ForwardOnly, stage_to_rank)
    };
    for (stage, rank) in stage_to_rank.iter().enumerate() {
        let stage = StageIndex::new(stage);
        let forward = |k| Action::compute(stage, Compute::Forward, MicroBatchIndex::new(k));
        if let Some(list) = schedule.ranks.get_mut(rank.index()) {
            list.extend((0..micro_batches).map(forward));
        }
    }
    schedule
}
