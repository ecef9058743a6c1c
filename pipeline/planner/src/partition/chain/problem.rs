//! The inputs of all searches for cuts.

use tinderbox_schedule::Schedule;

use super::ranges::Ranges;
use super::search::Cuts;
use super::stages::Stages;
use crate::{Machine, PlannerError, Step, Work};

/// The inputs that do not change with the limits.
pub(super) struct Problem<'a> {
    pub(super) work: &'a Work,
    pub(super) machine: &'a Machine,
    pub(super) step: &'a Step,
    /// The maximum number of positions for cuts that are compared in one search.
    pub(super) most_positions: usize,
    pub(super) ranges: Ranges,
    pub(super) lists: Option<Schedule>,
}

impl<'a> Problem<'a> {
    pub(super) fn new(
        work: &'a Work,
        machine: &'a Machine,
        step: &'a Step,
        most_positions: usize,
    ) -> Result<Self, PlannerError> {
        work.check()?;
        let map = machine.stage_to_rank();
        let (stages, blocks) = (map.len(), work.blocks.len());
        if blocks < stages {
            return Err(PlannerError::TooManyStages { stages, blocks });
        }
        Ok(Self {
            ranges: Ranges::new(work, step),
            work,
            machine,
            step,
            most_positions,
            lists: step.lists(&map),
        })
    }

    /// The bytes that a stage holds by the cost model.
    pub(super) fn held(&self, stages: &Stages, cuts: &Cuts, stage: usize) -> u64 {
        let from = cuts.starts[stage];
        let next = cuts.starts.get(stage + 1);
        let to = next.copied().unwrap_or(self.work.blocks.len());
        let range = self.ranges.table(&[from, to].into()).between(0, 1);
        stages.held_bytes(stage, &range, cuts.recompute[stage])
    }
}
