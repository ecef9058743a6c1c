//! The lists under which a partition runs.

use tinderbox_schedule::arithmetic::sum;
use tinderbox_schedule::{
    Action, AutoOptions, Compute, Costs, Dependencies, RankIndex, Schedule, auto, simulate,
};

use super::memory::memory_of_ranks;
use crate::{Machine, PlannerError, Step};

/// Returns the schedule of stages on these ranks: the step's own, or lists found by a search within the
/// memory of the ranks, if it is limited.
pub(crate) fn schedule_of(
    machine: &Machine,
    step: &Step,
    stage_to_rank: &[RankIndex],
    dependencies: &Dependencies,
    costs: &Costs,
) -> Result<Schedule, PlannerError> {
    if let Some(named) = step.lists(stage_to_rank) {
        return Ok(named);
    }
    // The search splits a backward where that helps. For schedules that never split, the first half of a backward gets its
    // whole work, and represents the whole backward.
    let splits = step.schedule.splits_backward();
    let mut searched = costs.clone();
    for stage in searched.stages.iter_mut().filter(|_| !splits) {
        stage.input_gradient = stage.backward;
        stage.weight_gradient = 0;
        stage.weight_gradient_bytes = 0;
    }
    let ranks = machine.rank_models().iter();
    let memory = ranks.map(|rank| rank.memory_bytes.unwrap_or(u64::MAX));
    let memory: Vec<u64> = memory.collect();
    let mut limits = memory.clone();
    let mut best: Option<(u64, Schedule)> = None;
    for _ in 0..ATTEMPTS {
        let options = AutoOptions {
            memory_limits: Some(&limits),
            ..AutoOptions::default()
        };
        let micro_batches = step.per_replica();
        let found = auto(
            stage_to_rank,
            micro_batches,
            dependencies,
            &searched,
            options,
        );
        let mut found = match (found, &best) {
            (Ok(found), _) => found.schedule,
            (Err(error), None) => return Err(error.into()),
            (Err(_), Some(_)) => break,
        };
        if !splits {
            join_halves(&mut found);
        }
        let excess = excess(&found, dependencies, costs, &memory)?;
        let sum = sum(excess.iter().copied());
        if best.as_ref().is_none_or(|(least, _)| sum < *least) {
            best = Some((sum, found));
        }
        if sum == 0 {
            break;
        }
        for (limit, excess) in limits.iter_mut().zip(&excess) {
            *limit = limit.saturating_sub(*excess);
        }
    }
    let (_, schedule) = best.expect("the first attempt found lists or returned");
    Ok(schedule)
}

/// Maximum number of searches. The search does not count the messages that wait under its lists, so
/// limits are lowered by the excess.
const ATTEMPTS: usize = 3;

/// Bytes by which each rank exceeds its memory, waiting messages included.
fn excess(
    schedule: &Schedule,
    dependencies: &Dependencies,
    costs: &Costs,
    memory: &[u64],
) -> Result<Vec<u64>, PlannerError> {
    if memory.iter().all(|bytes| *bytes == u64::MAX) {
        return Ok(vec![0; memory.len()]);
    }
    let timeline = simulate(schedule, dependencies, costs)?;
    let held = memory_of_ranks(schedule, &timeline, costs, &[]);
    let held = held.iter().zip(memory);
    let over = held.map(|(held, memory)| held.total().saturating_sub(*memory));
    Ok(over.collect())
}

/// Replaces split backwards by whole ones.
fn join_halves(schedule: &mut Schedule) {
    for list in &mut schedule.ranks {
        list.retain_mut(|action| match action {
            Action::Compute(task) => {
                if task.compute == Compute::InputGradient {
                    task.compute = Compute::Backward;
                }
                task.compute != Compute::WeightGradient
            }
            _ => true,
        });
    }
}
