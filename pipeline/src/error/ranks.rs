//! Errors of ranks while they work.

use std::time::Duration;

use tinderbox_deferred::human_bytes;

use super::acting::ActionError;
use super::texts::locate;
use crate::schedule::{MicroBatchIndex, RankIndex, StageIndex};

/// Errors of a rank while it works.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    /// An action of a rank failed. All ranks have stopped.
    #[error("{}", locate(*rank, *stage, *micro_batch, action))]
    Action {
        /// The rank.
        rank: RankIndex,
        /// The stage.
        stage: Option<StageIndex>,
        /// The micro-batch, among the micro-batches of all replicas.
        micro_batch: Option<MicroBatchIndex>,
        /// The action in the notation of schedules, whose micro-batches count from the first of the replica.
        action: String,
        /// The cause.
        source: Box<ActionError>,
    },
    /// A rank did not answer in time.
    #[error("rank {rank} did not reply within {timeout:?} to the request to {request}")]
    Timeout {
        /// The rank.
        rank: RankIndex,
        /// The request.
        request: &'static str,
        /// The timeout.
        timeout: Duration,
    },
    /// The ranks make no progress with a step or an evaluation.
    #[error(
        "no rank finished an action within {timeout:?} during the request to {request}; rank {rank} has not replied"
    )]
    Idle {
        /// The first rank that has not replied.
        rank: RankIndex,
        /// The request.
        request: &'static str,
        /// The timeout.
        timeout: Duration,
    },
    /// A rank makes no progress with the parameters that it materializes or reads.
    #[error(
        "rank {rank} made no progress for {timeout:?} during the request to {request}: {parameters} of {of} parameters, \
         {}",
        human_bytes(*bytes)
    )]
    Stalled {
        /// The lowest rank that had not finished.
        rank: RankIndex,
        /// The request.
        request: &'static str,
        /// The timeout.
        timeout: Duration,
        /// The number of complete parameters.
        parameters: u64,
        /// The number of parameters that were started.
        of: u64,
        /// Bytes that were computed or read.
        bytes: u64,
    },
    /// The thread of a rank ended without a reason, for example because its link panicked while it was
    /// notified of another failure.
    #[error("the thread of rank {rank} ended without a reason: its panic, if any, is on stderr")]
    Ended {
        /// The rank.
        rank: RankIndex,
    },
    /// Values of a rank of this process can't be read.
    #[error("{what} can't be read")]
    Unreadable {
        /// The values.
        what: &'static str,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
