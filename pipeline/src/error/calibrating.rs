//! Errors of measuring a machine.

use tinderbox_deferred::DeferredError;
use tinderbox_planner::MachineError;
use tinderbox_world::WorldError;

use crate::{PipelineError, PlanError, ProfileError, TraceError};

/// The error of measuring a machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// There are no ranks.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// An operation could not be timed.
    #[error(transparent)]
    Operation(#[from] ProfileError),
    /// The model of the timed pipeline could not be constructed.
    #[error("the model of the timed pipeline could not be constructed")]
    Deferred(#[from] DeferredError),
    /// The timed pipeline could not be traced.
    #[error("the timed pipeline could not be traced")]
    Trace(#[from] TraceError),
    /// The timed pipeline could not be planned.
    #[error("the timed pipeline could not be planned")]
    Plan(#[from] PlanError),
    /// The timed pipeline failed.
    #[error("the timed pipeline failed")]
    Pipeline(#[from] PipelineError),
    /// Another process can't continue.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The other end of a link does not answer.
    #[error("the process at the other end of a link does not answer: look at its own error")]
    Silent,
}
