//! Errors of parameters and of the state of the optimizer, and of a recovery of them.

use std::error::Error;
use std::time::Duration;

use tinderbox_deferred::{MaterializeError, ParameterPath, SourceError};

use super::starting::GroupError;
use super::texts::numbered;
use crate::did_you_mean;
use crate::schedule::RankIndex;

/// Errors of reading, replacing and restoring parameters and the state of the optimizer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The model has no parameter with a path.
    #[error("the model has no parameter `{path}`{}", did_you_mean(near))]
    UnknownParameter {
        /// The path.
        path: ParameterPath,
        /// Parameters with similar paths.
        near: Vec<ParameterPath>,
    },
    /// Values do not fit the parameters that they were to replace.
    #[error("the parameters could not be replaced; nothing was changed")]
    Values {
        /// The cause.
        source: SourceError,
    },
    /// Values could not be read back.
    #[error("the parameters could not be gathered")]
    Gather(#[source] MaterializeError),
    /// A group of parameters can't be used; nothing was changed.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The pipeline keeps no averages.
    #[error("the pipeline keeps no averages: call `.average(0.999)` before `.start()`")]
    NoAverages,
    /// The parameters are exchanged for their averages.
    #[error(
        "the parameters are exchanged for their averages: train, set and restore parameters outside of `with_averages`"
    )]
    Averaged,
    /// A saved state does not fit the pipeline.
    #[error("the saved state of rank {rank} could not be restored; nothing was changed")]
    Restore {
        /// The rank.
        rank: RankIndex,
        /// The cause.
        source: RestoreError,
    },
    /// A saved state does not fit the rank of another process; nothing has changed.
    #[error("rank {rank} can't restore: {reason}")]
    RestoreElsewhere {
        /// The rank.
        rank: RankIndex,
        /// Its error, with its causes.
        reason: String,
    },
    /// A saved state could not be read completely.
    #[error(
        "rank {rank} could not read its part of a saved state, and the pipeline holds a mixture of old and restored \
         values: restore another saved state, or start a new pipeline"
    )]
    PartlyRestored {
        /// The lowest rank that failed.
        rank: RankIndex,
        /// The cause.
        source: RestoreError,
    },
    /// An earlier restore failed partway.
    #[error(
        "the pipeline holds a mixture of old and restored values because a restore failed: restore a saved state that \
         can be read, or start a new pipeline"
    )]
    Mixed,
}

/// The error of restoring a stage's state.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The parameters could not be loaded.
    #[error(transparent)]
    Parameters(#[from] MaterializeError),
    /// The state of the optimizer could not be read.
    #[error("the optimizer state of `{path}` could not be read")]
    ReadState {
        /// The parameter.
        path: ParameterPath,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The saved state is incomplete or of another optimizer.
    #[error(
        "the optimizer state of `{path}` is incomplete or of another optimizer: the saved fields are {found:?}"
    )]
    OptimizerState {
        /// The parameter.
        path: ParameterPath,
        /// The names of the fields that were saved for it.
        found: Vec<String>,
    },
    /// A saved tensor has another shape than its parameter, though the optimizer keeps one value for each element.
    #[error(
        "the optimizer state `{tensor}` was saved with shape {saved:?}, but the parameter has shape {parameter:?}; if it is \
         the part of one replica, join the parts of all first, or read the state from a checkpoint"
    )]
    StateShape {
        /// The name of the tensor.
        tensor: String,
        /// The shape that was saved.
        saved: Vec<u64>,
        /// The shape of the parameter.
        parameter: Vec<u64>,
    },
    /// Burn reads a saved tensor in another dtype.
    #[error(
        "the optimizer state `{tensor}` was saved as {saved}, but Burn reads states of optimizers in the default float \
         of the device, {read}: configure the device for {saved} before its first use (`Device::configure`)"
    )]
    StateDType {
        /// The name of the tensor.
        tensor: String,
        /// The dtype in which it was saved.
        saved: &'static str,
        /// The dtype in which Burn reads it on the device.
        read: &'static str,
    },
}

/// Errors of a recovery: of its settings, and of continuing without processes that were lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoveryError {
    /// A second pipeline with recovery in one world.
    #[error(
        "another pipeline of this world has a recovery: one pipeline of a world can have it, and a world can have no other \
        pipelines beside it"
    )]
    TwoRecoveries,
    /// The timeout ends before a silent process is known to be lost.
    #[error(
        "the timeout of {timeout:?} is not longer than {lost_after:?}, after which a silent process is lost: set a longer \
        `timeout`, or fewer or shorter heartbeats"
    )]
    ShortTimeout {
        /// The timeout of a message.
        timeout: Duration,
        /// The time that a process may be silent.
        lost_after: Duration,
    },
    /// No plan was found for the ranks that are left.
    #[error(
        "there is no plan for the processes that are left, {processes}: set `Recovery::plan`, or resume the last checkpoint \
        with more processes"
    )]
    NoPlan {
        /// The number of processes.
        processes: usize,
        /// The first reason.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// Ranks and the processes that kept their state are lost.
    #[error(
        "the state of {} is lost, because the process that keeps it is lost too, or had not received it yet: restore the last \
        checkpoint, for example with `Checkpoints::resume`, and continue from its step",
        numbered(ranks)
    )]
    StateLost {
        /// The ranks.
        ranks: Vec<RankIndex>,
    },
    /// The state of lost ranks is lost, and no checkpoint was restored since.
    #[error(
        "the state of lost ranks is lost: restore the last checkpoint, for example with `Checkpoints::resume`, before any other \
         call"
    )]
    AwaitsRestore,
}
