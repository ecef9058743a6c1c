//! Errors of this crate.
//!
//! The enums are exhaustive on purpose: crates that build on this one convert every variant into an error of their
//! own, and should fail to compile when a variant is added.

use std::io;
use std::time::Duration;

use tinderbox_ids::RankIndex;

/// An error of sending or receiving a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MailboxError<K> {
    /// The message did not arrive in time.
    #[error("no `{key}` from rank {from} within {timeout:?}")]
    Timeout {
        /// The sender.
        from: RankIndex,
        /// The key of the message.
        key: K,
        /// The timeout of the mailbox.
        timeout: Duration,
    },
    /// A rank has failed, or the driver has stopped all ranks.
    #[error("another rank failed")]
    Aborted,
    /// The other rank has ended, or there is no rank with that index.
    #[error("rank {rank} has ended")]
    Closed {
        /// The other rank.
        rank: RankIndex,
    },
    /// Two messages with the same key arrived.
    #[error("rank {from} sent `{key}` twice: a key names one message")]
    Repeated {
        /// The sender.
        from: RankIndex,
        /// The key of both messages.
        key: K,
    },
}

/// The reason why a crew of ranks has stopped.
#[derive(Debug, thiserror::Error)]
pub enum CrewError<E> {
    /// A rank failed.
    #[error("a rank failed")]
    Failed {
        /// The first reason that a rank reported.
        #[source]
        reason: E,
    },
    /// A rank did not reply in time.
    #[error("rank {rank} did not reply within {timeout:?}")]
    Timeout {
        /// The lowest rank without a reply.
        rank: RankIndex,
        /// The time of the driver's wait.
        timeout: Duration,
    },
    /// The crew was stopped by an earlier error, or the reason was taken from the [`Abort`](crate::link::Abort).
    #[error("the ranks have stopped after an earlier error: start new ones")]
    Stopped,
    /// A thread could not be started.
    #[error("the thread of rank {rank} could not be started")]
    Spawn {
        /// The rank.
        rank: RankIndex,
        /// The error of the operating system.
        source: io::Error,
    },
}
