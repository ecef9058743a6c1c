//! Errors of a recovery.

use std::time::Duration;

use super::texts::numbered;
use crate::schedule::RankIndex;

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
    /// A timeout after which a silent process is not known to be lost yet.
    #[error(
        "the timeout of {timeout:?} is not longer than {lost_after:?}, after which a silent process is lost: set a longer \
        `timeout`, or fewer or shorter heartbeats"
    )]
    ShortTimeout {
        /// The timeout of a message.
        timeout: Duration,
        /// How long a process may be silent.
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
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// Ranks are lost together with those that kept their state.
    #[error(
        "the state of {} is lost, because the process that keeps it is lost too, or had not received it yet: restore the last \
        checkpoint, as by `Checkpoints::resume`, and continue from its step",
        numbered(ranks)
    )]
    StateLost {
        /// The ranks.
        ranks: Vec<RankIndex>,
    },
    /// The state of lost ranks is lost, and no checkpoint was restored since.
    #[error(
        "the state of lost ranks is lost: restore the last checkpoint, as by `Checkpoints::resume`, before any other call"
    )]
    AwaitsRestore,
}
