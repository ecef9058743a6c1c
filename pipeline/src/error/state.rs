//! Errors of parameters and of the state of the optimizer.

use tinderbox_deferred::{MaterializeError, ParameterPath, SourceError};

use super::grouping::GroupError;
use super::restoring::RestoreError;
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
