//! The lists under which a partition runs.

use tinderbox_schedule::{
    Action, AutoOptions, Compute, Costs, Dependencies, RankIndex, Schedule, ScheduleKind, auto,
};

use crate::{Machine, PlannerError, Step};

/// The schedule of stages that lie on ranks in this way: the step's own, or lists that are found for
/// them.
pub(crate) fn schedule_of(
    machine: &Machine,
    step: &Step,
    stage_to_rank: &[RankIndex],
    dependencies: &Dependencies,
    costs: &Costs,
) -> Result<Schedule, PlannerError> {
    let ranks = stage_to_rank.iter().map(|rank| rank.index() + 1).max();
    let chunks = stage_to_rank.len() / ranks.unwrap_or(1).max(1);
    let named = step
        .schedule
        .generate(ranks.unwrap_or(0), chunks, step.micro_batches);
    if let Ok(named) = named
        && named.stage_to_rank == stage_to_rank
    {
        return Ok(named);
    }
    // Lists that are found split a backward where that helps; a schedule that never does is found with
    // all work of a backward in its first half, which then stands for the whole.
    let splits = splits(step.schedule);
    let searched = match splits {
        true => costs.clone(),
        false => unsplit(costs),
    };
    let limits: Vec<u64> = machine
        .rank_models()
        .iter()
        .map(|rank| rank.memory_bytes.unwrap_or(u64::MAX))
        .collect();
    let options = AutoOptions {
        memory_limits: Some(&limits),
        ..AutoOptions::default()
    };
    let found = auto(
        stage_to_rank,
        step.micro_batches,
        dependencies,
        &searched,
        options,
    )?;
    let mut schedule = found.schedule;
    if !splits {
        join_halves(&mut schedule);
    }
    Ok(schedule)
}

/// Whether a schedule has backwards in two halves.
const fn splits(kind: ScheduleKind) -> bool {
    !matches!(
        kind,
        ScheduleKind::GPipe
            | ScheduleKind::OneFOneB
            | ScheduleKind::LoopedBfs
            | ScheduleKind::Interleaved1F1B
    )
}

/// The same costs with nothing left for the second half of a backward.
fn unsplit(costs: &Costs) -> Costs {
    let mut costs = costs.clone();
    for stage in &mut costs.stages {
        stage.input_gradient = stage.backward;
        stage.weight_gradient = 0;
        stage.weight_gradient_bytes = 0;
    }
    costs
}

/// Makes whole backwards of split ones.
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
