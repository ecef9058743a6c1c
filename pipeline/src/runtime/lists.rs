//! The lists that a pipeline runs: a named schedule, or one that a user wrote.

use std::fmt;

use tinderbox_planner::PlanFile;

use crate::PipelineError;
use crate::schedule::{
    Action, Compute, Dependencies, RankIndex, Schedule, ScheduleKind, ScheduleMode, StageIndex,
    lower, verify,
};

/// Which schedule runs a training step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleChoice {
    /// A named one, generated for the current stages and micro-batches.
    Named(ScheduleKind),
    /// Lists written by a user, by [`auto`](crate::schedule::auto) or by another program. What they
    /// have besides compute is derived again from the plan.
    Written(Box<Schedule>),
    /// That of a plan: its own lists, and others of the same kind for other numbers of micro-batches and
    /// for batches whose programs wait for each other in another way.
    Planned(Box<PlanFile>),
}

impl Default for ScheduleChoice {
    fn default() -> Self {
        Self::Named(ScheduleKind::default())
    }
}

impl From<ScheduleKind> for ScheduleChoice {
    fn from(kind: ScheduleKind) -> Self {
        Self::Named(kind)
    }
}

impl From<Schedule> for ScheduleChoice {
    fn from(schedule: Schedule) -> Self {
        Self::Written(Box::new(schedule))
    }
}

impl fmt::Display for ScheduleChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(kind) => kind.fmt(f),
            Self::Written(schedule) => f.write_str(&schedule.name),
            Self::Planned(_) => f.write_str("auto"),
        }
    }
}

impl ScheduleChoice {
    /// The compute actions for stages on these ranks, which wait for each other as `dependencies` say.
    ///
    /// # Errors
    ///
    /// When a named schedule does not take so many stages per rank, lays them over the ranks in another
    /// way, a written one is for another number of micro-batches, or no lists run a plan's stages.
    pub fn compute(
        &self,
        stage_to_rank: &[RankIndex],
        micro_batches: usize,
        dependencies: &Dependencies,
    ) -> Result<Schedule, PipelineError> {
        let schedule = match self {
            Self::Named(kind) => {
                let last = stage_to_rank.iter().max();
                let ranks = last.map_or(0, |rank| rank.index() + 1);
                let stages = stage_to_rank.len();
                if !stages.is_multiple_of(ranks.max(1)) {
                    return Err(PipelineError::Chunks { stages, ranks });
                }
                let chunks = stages / ranks.max(1);
                kind.generate(ranks, chunks, micro_batches)
                    .map_err(PipelineError::Generate)?
            }
            Self::Written(schedule) => {
                if schedule.micro_batches != micro_batches {
                    return Err(PipelineError::MicroBatches {
                        schedule: schedule.name.clone(),
                        expected: schedule.micro_batches,
                        found: micro_batches,
                    });
                }
                if schedule.mode != ScheduleMode::Training {
                    return Err(PipelineError::NoBackward {
                        schedule: schedule.name.clone(),
                    });
                }
                schedule.compute_only()
            }
            Self::Planned(plan) => plan
                .lists_for(micro_batches, dependencies)
                .map_err(PipelineError::Lists)?,
        };
        if schedule.stage_to_rank != stage_to_rank {
            let ranks = |map: &[RankIndex]| map.iter().map(|rank| rank.index()).collect();
            return Err(PipelineError::Placement {
                schedule: schedule.name,
                expected: ranks(&schedule.stage_to_rank),
                found: ranks(stage_to_rank),
            });
        }
        Ok(schedule)
    }
}

/// Verified lists of all ranks, and what an executor wants to know of them at once.
#[derive(Debug)]
pub(crate) struct StepLists {
    pub(crate) schedule: Schedule,
    /// Per stage and micro-batch, whether its backward runs as `I` and `W`.
    is_split: Vec<bool>,
}

impl StepLists {
    /// Lowers and verifies compute actions.
    pub(super) fn new(
        compute: &Schedule,
        dependencies: &Dependencies,
    ) -> Result<Self, PipelineError> {
        // A written schedule is verified first as it was written.
        verify(compute, dependencies).map_err(PipelineError::Schedule)?;
        let schedule = lower(compute, dependencies);
        verify(&schedule, dependencies).map_err(PipelineError::Schedule)?;
        Ok(Self::of(schedule))
    }

    /// The lists of a lowered schedule.
    pub(crate) fn of(schedule: Schedule) -> Self {
        let mut is_split = vec![false; schedule.stages * schedule.micro_batches];
        let actions = schedule.ranks.iter().flatten();
        for task in actions.flat_map(Action::tasks) {
            if task.compute == Compute::WeightGradient {
                is_split[task.stage.index() * schedule.micro_batches + task.micro_batch.index()] =
                    true;
            }
        }
        Self { schedule, is_split }
    }

    /// Whether the backward of a micro-batch runs in two halves on a stage.
    pub(super) fn is_split(&self, stage: StageIndex, micro_batch: usize) -> bool {
        let place = stage.index() * self.schedule.micro_batches + micro_batch;
        self.is_split.get(place).copied().unwrap_or(false)
    }
}
