//! The bytes that a rank holds, action by action.

use super::costs::Costs;
use crate::action::{Action, Compute};
use crate::error::{Place, VerifyError};
use crate::index::RankIndex;
use crate::lists::{Schedule, ScheduleMode};

/// Returns the bytes of a rank while each of its actions runs, and after it.
///
/// A forward allocates its activations when it begins; `B` and `W` free the rest of them when they
/// end, `I` frees all that `W` does not need. Without a backward pass a forward frees its own.
fn bytes_of(schedule: &Schedule, costs: &Costs, rank: RankIndex, resident: u64) -> Vec<(u64, u64)> {
    let stage = |index: usize| costs.stages.get(index).copied().unwrap_or_default();
    let mut held = resident;
    let walk = schedule.actions(rank).iter().map(|action| {
        let of = |compute: Compute| {
            let tasks = action.tasks().iter();
            tasks.filter(move |task| task.compute == compute)
        };
        for task in of(Compute::Forward) {
            held = held.saturating_add(stage(task.stage.index()).activation_bytes);
        }
        let during = held;
        for task in action.tasks() {
            let costs = stage(task.stage.index());
            held = match (task.compute, schedule.mode) {
                (Compute::Forward, ScheduleMode::Training) => held,
                (Compute::Forward, ScheduleMode::ForwardOnly) | (Compute::Backward, _) => {
                    held.saturating_sub(costs.activation_bytes)
                }
                (Compute::InputGradient, _) => held
                    .saturating_sub(costs.activation_bytes)
                    .saturating_add(costs.weight_gradient_bytes),
                (Compute::WeightGradient, _) => held.saturating_sub(costs.weight_gradient_bytes),
            };
        }
        (during.max(held), held)
    });
    walk.collect()
}

/// Returns the same for every rank.
pub(super) fn bytes_of_all(
    schedule: &Schedule,
    costs: &Costs,
) -> impl Iterator<Item = Vec<(u64, u64)>> {
    let mut resident = vec![0_u64; schedule.world_size()];
    for (rank, stage) in schedule.stage_to_rank.iter().zip(&costs.stages) {
        if let Some(resident) = resident.get_mut(rank.index()) {
            *resident = resident.saturating_add(stage.resident_bytes);
        }
    }
    let ranks = resident.into_iter().enumerate();
    ranks.map(|(rank, resident)| bytes_of(schedule, costs, RankIndex::new(rank), resident))
}

/// Returns the most bytes that each rank holds at a time. They depend only on the order of its actions, not
/// on their times.
#[must_use]
pub fn peak_bytes(schedule: &Schedule, costs: &Costs) -> Vec<u64> {
    let peak = |bytes: Vec<(u64, u64)>| bytes.into_iter().map(|(during, _)| during).max();
    bytes_of_all(schedule, costs)
        .map(|bytes| peak(bytes).unwrap_or(0))
        .collect()
}

/// Checks that no rank exceeds its memory limit.
///
/// # Errors
///
/// [`VerifyError::Memory`] names the first action, rank by rank, that exceeds the limit.
/// A rank beyond the end of `limits` has none.
pub fn check_memory(schedule: &Schedule, costs: &Costs, limits: &[u64]) -> Result<(), VerifyError> {
    let ranks = limits.iter().zip(bytes_of_all(schedule, costs));
    for (rank, (limit, bytes)) in ranks.enumerate() {
        let rank = RankIndex::new(rank);
        for (position, (during, _)) in bytes.into_iter().enumerate() {
            if during > *limit {
                let action: Action = schedule.actions(rank)[position];
                return Err(VerifyError::Memory {
                    at: Place {
                        rank,
                        position,
                        action,
                    },
                    bytes: during,
                    limit: *limit,
                });
            }
        }
    }
    Ok(())
}

/// Returns per rank the largest number of micro-batches that wait for their backward, each counted once per
/// stage of the rank.
#[must_use]
pub fn peak_activations(schedule: &Schedule) -> Vec<usize> {
    let one = super::ComputeTimes {
        forward: 0,
        input_gradient: 0,
        weight_gradient: 0,
    };
    // A file can claim more stages than its lists have.
    let named = schedule.places().flat_map(|at| {
        let tasks: Vec<_> = at
            .action
            .tasks()
            .iter()
            .map(|task| task.stage.index())
            .collect();
        tasks
    });
    let stages = named
        .max()
        .map_or(0, |last| last.saturating_add(1).min(schedule.stages));
    let costs = Costs::uniform(stages, one);
    let peaks = peak_bytes(schedule, &costs).into_iter();
    peaks
        .map(|peak| usize::try_from(peak).unwrap_or(usize::MAX))
        .collect()
}
