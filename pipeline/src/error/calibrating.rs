//! What can be wrong with measuring a machine.

use tinderbox_deferred::DeferredError;
use tinderbox_planner::MachineError;

use crate::{PipelineError, PlanError, ProfileError, TraceError};

/// Why a machine could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// It has no ranks.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// An operation could not be timed.
    #[error(transparent)]
    Operation(#[from] ProfileError),
    /// The small model that is timed could not be made.
    #[error("the pipeline that is timed could not be made")]
    Deferred(#[from] DeferredError),
    /// It could not be traced.
    #[error("the pipeline that is timed could not be traced")]
    Trace(#[from] TraceError),
    /// It could not be planned.
    #[error("the pipeline that is timed could not be planned")]
    Plan(#[from] PlanError),
    /// It could not be run.
    #[error("the pipeline that is timed could not be run")]
    Pipeline(#[from] PipelineError),
}
