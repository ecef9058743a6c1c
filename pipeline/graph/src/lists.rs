//! The lists that a pipeline runs: a named schedule, or a written one.

use std::collections::HashSet;

use derive_more::{Display, From};
use tinderbox_fake::Mode;
use tinderbox_planner::Plan;

use crate::ListsError;
use crate::schedule::{
    Action, Compute, Dependencies, RankIndex, Schedule, ScheduleKind, ScheduleMode, StageIndex,
    lower, verify,
};

/// The schedule of a training step.
#[derive(Clone, Debug, Display, From, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleChoice {
    /// A named schedule, generated for the current stages and micro-batches.
    #[from]
    Named(ScheduleKind),
    /// Lists written by a user, by [`auto`](crate::schedule::auto) or by another program. Actions other
    /// than compute are derived again from the plan.
    #[display("{}", _0.name)]
    #[from(Schedule)]
    Written(Box<Schedule>),
    /// The schedule of a plan: its own lists, and lists of the same kind for other numbers of
    /// micro-batches and for batches whose programs have other dependencies.
    #[display("auto")]
    Planned(Box<Plan>),
}

impl Default for ScheduleChoice {
    fn default() -> Self {
        Self::Named(ScheduleKind::default())
    }
}

impl ScheduleChoice {
    /// Returns the schedule of a plan: its own lists if it has any, else the named schedule.
    pub fn of(plan: &Plan) -> Self {
        match plan.lists {
            Some(_) => Self::Planned(Box::new(plan.without_programs())),
            None => plan.step.schedule.into(),
        }
    }

    /// Returns the compute actions for stages on these ranks, with their dependencies.
    ///
    /// # Errors
    ///
    /// When a named schedule does not support this number of stages per rank or places them on the
    /// ranks in another way, a written schedule is for another number of micro-batches, or a search
    /// finds no lists for a plan's stages.
    pub fn compute(
        &self,
        stage_to_rank: &[RankIndex],
        micro_batches: usize,
        dependencies: &Dependencies,
    ) -> Result<Schedule, ListsError> {
        let schedule = match self {
            Self::Named(kind) => {
                let last = stage_to_rank.iter().max();
                let ranks = last.map_or(0, |rank| rank.index() + 1);
                let stages = stage_to_rank.len();
                if !stages.is_multiple_of(ranks.max(1)) {
                    return Err(ListsError::Chunks { stages, ranks });
                }
                let chunks = stages / ranks.max(1);
                kind.generate(ranks, chunks, micro_batches)
                    .map_err(ListsError::Generate)?
            }
            Self::Written(schedule) => {
                if schedule.micro_batches != micro_batches {
                    return Err(ListsError::MicroBatches {
                        schedule: schedule.name.clone(),
                        expected: schedule.micro_batches,
                        found: micro_batches,
                    });
                }
                if schedule.mode != ScheduleMode::Training {
                    let schedule = schedule.name.clone();
                    return Err(ListsError::NoBackward { schedule });
                }
                schedule.compute_only()
            }
            Self::Planned(plan) => plan
                .lists_for(micro_batches, dependencies)
                .map_err(ListsError::Lists)?,
        };
        if schedule.stage_to_rank != stage_to_rank {
            let ranks = |map: &[RankIndex]| map.iter().map(|rank| rank.index()).collect();
            return Err(ListsError::Placement {
                schedule: schedule.name,
                expected: ranks(&schedule.stage_to_rank),
                found: ranks(stage_to_rank),
            });
        }
        Ok(schedule)
    }
}

/// The verified lists of all ranks, with values derived from them.
#[derive(Debug)]
pub struct StepLists {
    pub schedule: Schedule,
    /// The stages and micro-batches whose backward is split into `I` and `W`.
    split: HashSet<(StageIndex, usize)>,
}

impl StepLists {
    /// Lowers and verifies compute actions.
    pub fn new(compute: &Schedule, dependencies: &Dependencies) -> Result<Self, ListsError> {
        // A written schedule is verified as it was written before it is lowered.
        verify(compute, dependencies).map_err(ListsError::Schedule)?;
        let schedule = lower(compute, dependencies);
        verify(&schedule, dependencies).map_err(ListsError::Schedule)?;
        Ok(Self::of(schedule))
    }

    /// The lists of a replica that has no micro-batch. It only participates in the sums, and does nothing in an evaluation.
    pub fn without_micro_batches(
        mode: Mode,
        stage_to_rank: &[RankIndex],
        dependencies: &Dependencies,
    ) -> Result<Self, ListsError> {
        let mode = match mode {
            Mode::Training => ScheduleMode::Training,
            Mode::Inference => ScheduleMode::ForwardOnly,
        };
        let schedule = lower(&Schedule::idle(mode, stage_to_rank), dependencies);
        if mode == ScheduleMode::Training {
            verify(&schedule, dependencies).map_err(ListsError::Schedule)?;
        }
        Ok(Self::of(schedule))
    }

    /// The lists of a lowered schedule.
    pub fn of(schedule: Schedule) -> Self {
        let tasks = schedule.ranks.iter().flatten().flat_map(Action::tasks);
        let weights = tasks.filter(|task| task.compute == Compute::WeightGradient);
        let split = weights.map(|task| (task.stage, task.micro_batch.index()));
        Self {
            split: split.collect(),
            schedule,
        }
    }

    /// Whether the backward of a micro-batch is split on a stage.
    pub fn is_split(&self, stage: StageIndex, micro_batch: usize) -> bool {
        self.split.contains(&(stage, micro_batch))
    }
}
