//! Errors of this crate.
//!
//! They are exhaustive on purpose: whoever builds on this crate turns each into an error of its own,
//! and must hear of a new one.

use std::io;
use std::time::Duration;

use tinderbox_schedule::RankIndex;

/// Why a message did not arrive or leave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MailboxError<K> {
    /// The message did not come in time.
    #[error("no `{key}` from rank {from} within {timeout:?}")]
    Timeout {
        /// The sender.
        from: RankIndex,
        /// What was waited for.
        key: K,
        /// How long.
        timeout: Duration,
    },
    /// A rank has failed, or the driver has stopped all.
    #[error("another rank failed")]
    Aborted,
    /// The other rank is gone, or no rank has that number.
    #[error("rank {rank} has ended")]
    Closed {
        /// The other rank.
        rank: RankIndex,
    },
    /// Two messages came under one key.
    #[error("rank {from} sent `{key}` twice: a key names one message")]
    Repeated {
        /// The sender.
        from: RankIndex,
        /// The key of both.
        key: K,
    },
}

/// Why a crew of ranks has stopped.
#[derive(Debug, thiserror::Error)]
pub enum CrewError<E> {
    /// A rank failed; this is the first reason that any rank gave.
    #[error("a rank failed")]
    Failed {
        /// What it said.
        #[source]
        reason: E,
    },
    /// A rank did not reply in time.
    #[error("rank {rank} did not reply within {timeout:?}")]
    Timeout {
        /// The lowest rank without a reply.
        rank: RankIndex,
        /// How long the driver waited.
        timeout: Duration,
    },
    /// The crew has stopped before, or somebody else took the reason.
    #[error("the ranks have stopped after an earlier error: start new ones")]
    Stopped,
    /// A thread could not be started.
    #[error("the thread of rank {rank} could not be started")]
    Spawn {
        /// The rank.
        rank: RankIndex,
        /// What the system said.
        source: io::Error,
    },
}
