//! The named schedules of a stage-to-rank map, with their makespans.

use crate::generate::ScheduleKind;
use crate::lists::Schedule;

use super::evaluate::Evaluator;
use super::problem::{Lists, Problem};

/// A named schedule that fits.
#[derive(Debug, Clone)]
pub(super) struct Named {
    pub kind: ScheduleKind,
    pub makespan: u64,
    pub schedule: Schedule,
    pub lists: Lists,
}

/// Returns the named schedules that have the problem's map and fit its memory, the fastest first.
pub(super) fn named(problem: &Problem<'_>, evaluator: &mut Evaluator<'_>) -> Vec<Named> {
    let Some(chunks) = problem.stages().checked_div(problem.ranks) else {
        return Vec::new();
    };
    let schedules = ScheduleKind::ALL.into_iter().filter_map(|kind| {
        let schedule = kind
            .generate(problem.ranks, chunks, problem.micro_batches)
            .ok()?;
        (schedule.stage_to_rank == problem.stage_to_rank).then_some((kind, schedule))
    });
    let mut found: Vec<Named> = schedules
        .filter_map(|(kind, schedule)| {
            // A test proves that every generator's schedule has lists.
            let lists = problem.lists_of(&schedule)?;
            Some(Named {
                kind,
                makespan: evaluator.makespan(&lists, u64::MAX)?,
                schedule,
                lists,
            })
        })
        .collect();
    // A stable sort: of equally fast schedules, the one that is listed first.
    found.sort_by_key(|named| named.makespan);
    found
}
