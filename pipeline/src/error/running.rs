//! Errors of starting and running a pipeline.

use tinderbox_world::WorldError;

use super::ranks::{DamageError, ProcessError, RankError};
use super::starting::{StartError, StreamedError};
use super::state::{RecoveryError, StateError};
use super::stepping::StepError;
use crate::{BatchError, ListsError, PlanError, TraceError};

/// Errors of starting and running a pipeline, by the failed operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// The pipeline can't be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The plan does not fit the model.
    #[error("the plan can't be used")]
    Plan(#[from] PlanError),
    /// The lists of actions can't be used.
    #[error(transparent)]
    Lists(#[from] ListsError),
    /// A step or an evaluation can't run.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A rank failed, or makes no progress.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// A rank of another process failed or is lost, or makes another call.
    #[error(transparent)]
    World(#[from] WorldError),
    /// Another process makes another call than this one, or sent an invalid message.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The pipeline can't have a recovery, or can't continue without processes that were lost.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// Parameters or the state of the optimizer can't be read, replaced or restored.
    #[error(transparent)]
    State(#[from] StateError),
    /// A value is wrong in memory, and no replica can repair it. The pipeline has stopped.
    #[error(transparent)]
    Damaged(#[from] DamageError),
    /// The model can't be streamed.
    #[error(transparent)]
    Streamed(#[from] StreamedError),
    /// The pipeline has stopped because of an earlier error.
    #[error("the pipeline has stopped after an earlier error: start a new one")]
    Stopped,
}

/// The result of an operation of a pipeline.
pub(crate) type Result<T, E = PipelineError> = std::result::Result<T, E>;

impl From<BatchError> for PipelineError {
    fn from(error: BatchError) -> Self {
        StepError::from(error).into()
    }
}

impl From<TraceError> for PipelineError {
    fn from(error: TraceError) -> Self {
        StepError::from(error).into()
    }
}
