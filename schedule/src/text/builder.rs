//! The schedule that rows of actions imply.

use std::collections::BTreeMap;

use super::error::{ParseError, TextPosition};
use crate::action::Action;
use crate::index::{RankIndex, StageIndex};
use crate::lists::{Form, Schedule, ScheduleMode};
use crate::task::Compute;

/// The lists rank by rank, and what they imply: stages, counts, mode and form.
///
/// Memory is proportional to the words read, never to a number in them.
pub(super) struct Builder {
    schedule: Schedule,
    /// Per stage, the rank that first runs it and the position of that word.
    stages: BTreeMap<StageIndex, (RankIndex, TextPosition)>,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            schedule: Schedule::idle(ScheduleMode::ForwardOnly, &[]),
            stages: BTreeMap::new(),
        }
    }

    /// Adds the next rank's list, or fails at the first word that is not an action.
    pub(super) fn add_rank(
        &mut self,
        row: impl Iterator<Item = Result<(TextPosition, Action), ParseError>>,
    ) -> Result<(), ParseError> {
        let rank = RankIndex::new(self.schedule.ranks.len());
        let mut list = Vec::new();
        for word in row {
            let (at, action) = word?;
            self.note(rank, at, &action);
            list.push(action);
        }
        self.schedule.ranks.push(list);
        Ok(())
    }

    /// Records what one action implies.
    fn note(&mut self, rank: RankIndex, at: TextPosition, action: &Action) {
        for task in action.tasks() {
            self.stages.entry(task.stage).or_insert((rank, at));
            let count = task.micro_batch.index().saturating_add(1);
            self.schedule.micro_batches = count.max(self.schedule.micro_batches);
            if task.compute != Compute::Forward {
                self.schedule.mode = ScheduleMode::Training;
            }
        }
        if action.tasks().is_empty() {
            self.schedule.form = Form::Lowered;
            if action.message().is_none() {
                self.schedule.mode = ScheduleMode::Training;
            }
        }
    }

    /// Returns the schedule, if its stages have no gap.
    pub(super) fn finish(mut self, name: &str) -> Result<Schedule, ParseError> {
        let mut stages = self.stages.iter().enumerate();
        if let Some((gap, (&found, &(_, at)))) = stages.find(|(at, (s, _))| s.index() != *at) {
            let stage = StageIndex::new(gap);
            return Err(ParseError::Gap { stage, found, at });
        }
        self.schedule.name = name.to_owned();
        self.schedule.stages = self.stages.len();
        let ranks = self.stages.into_values().map(|(rank, _)| rank);
        self.schedule.stage_to_rank = ranks.collect();
        Ok(self.schedule)
    }
}
