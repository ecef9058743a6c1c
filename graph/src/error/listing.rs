//! Errors of the lists of actions.

use tinderbox_planner::PlannerError;

use crate::schedule::{GenerateError, VerifyError};

/// Errors of the lists of actions that the ranks run, before they run: when a pipeline starts, and in a step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListsError {
    /// The numbers of stages per rank differ, but the schedule is a named one.
    #[error(
        "a named schedule needs the same number of stages on every rank, but the plan has {stages} stages on {ranks} \
         ranks: create the plan with `Machine::with_chunks`, or write a schedule for it"
    )]
    Chunks {
        /// The number of stages of the plan.
        stages: usize,
        /// The number of ranks of the plan.
        ranks: usize,
    },
    /// A written schedule is for another number of micro-batches.
    #[error(
        "schedule `{schedule}` is for {expected} micro-batches, but the step has {found}: use \
         a batch that splits into as many, or use a named schedule"
    )]
    MicroBatches {
        /// Name of the schedule.
        schedule: String,
        /// The number of micro-batches of the schedule.
        expected: usize,
        /// The number of micro-batches of the step.
        found: usize,
    },
    /// A written schedule has only forwards.
    #[error(
        "schedule `{schedule}` has no backward: a training step needs one, and `evaluate` needs no schedule"
    )]
    NoBackward {
        /// Name of the schedule.
        schedule: String,
    },
    /// The schedule places its stages on other ranks than the plan.
    #[error(
        "schedule `{schedule}` places its stages on ranks {expected:?}, but the plan places them on ranks \
         {found:?}: create the plan for this schedule with `Machine::with_chunks` or `Planner::on_ranks`"
    )]
    Placement {
        /// Name of the schedule.
        schedule: String,
        /// The rank of each stage in the schedule.
        expected: Vec<usize>,
        /// The rank of each stage in the plan.
        found: Vec<usize>,
    },
    /// The schedule can't be generated for these stages.
    #[error("the schedule can't be generated")]
    Generate(#[source] GenerateError),
    /// No schedule was found for the stages of the plan.
    #[error("no schedule was found for the plan's stages")]
    Lists(#[source] PlannerError),
    /// The schedule is invalid for the plan.
    #[error("the schedule can't be run")]
    Schedule(#[source] VerifyError),
}
