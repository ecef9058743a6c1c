//! The schedule that rows of actions imply.

use std::collections::BTreeMap;

use tinderbox_ids::{RankIndex, StageIndex};

use super::error::{ParseError, TextPosition};
use crate::action::Action;
use crate::lists::{Form, Schedule, ScheduleMode};
use crate::task::Compute;

/// The actions of a rank with the positions of their words.
pub(super) type Row = Vec<(TextPosition, Action)>;

/// Returns the schedule of rows, one per rank, with the stages, counts, mode and form that they imply. A gap in the stages is
/// an error.
///
/// Memory is proportional to the words read, never to a number in them.
pub(super) fn implied(name: &str, rows: Vec<Row>) -> Result<Schedule, ParseError> {
    let mut schedule = Schedule::idle(ScheduleMode::ForwardOnly, &[]);
    name.clone_into(&mut schedule.name);
    // Per stage, the rank that first runs it and the position of that word.
    let mut stages: BTreeMap<StageIndex, (RankIndex, TextPosition)> = BTreeMap::new();
    for (rank, row) in rows.into_iter().enumerate() {
        for (at, action) in &row {
            let tasks = action.tasks();
            for task in tasks {
                let first = (RankIndex::new(rank), *at);
                stages.entry(task.stage).or_insert(first);
                let count = task.micro_batch.index().saturating_add(1);
                schedule.micro_batches = count.max(schedule.micro_batches);
            }
            if tasks.is_empty() {
                schedule.form = Form::Lowered;
            }
            let is_forward = match tasks {
                [] => action.message().is_some(),
                tasks => tasks.iter().all(|task| task.compute == Compute::Forward),
            };
            if !is_forward {
                schedule.mode = ScheduleMode::Training;
            }
        }
        let list = row.into_iter().map(|(_, action)| action);
        schedule.ranks.push(list.collect());
    }
    let mut numbered = stages.iter().enumerate();
    if let Some((gap, (&found, &(_, at)))) = numbered.find(|(at, (s, _))| s.index() != *at) {
        let stage = StageIndex::new(gap);
        return Err(ParseError::Gap { stage, found, at });
    }
    schedule.stages = stages.len();
    schedule.stage_to_rank = stages.into_values().map(|(rank, _)| rank).collect();
    Ok(schedule)
}
