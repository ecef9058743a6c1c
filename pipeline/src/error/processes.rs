//! Errors between the processes of a world.

use tinderbox_fake::FakeError;

use crate::schedule::RankIndex;

/// Errors of processes that do something else than this one, or can't be understood.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// Processes were started with different settings.
    #[error("rank {rank} has another {field} than rank 0: {found}, expected {expected}")]
    OtherSettings {
        /// The first rank that differs from rank 0.
        rank: RankIndex,
        /// What differs.
        field: String,
        /// The value of rank 0, or its digest.
        expected: String,
        /// The value of the rank, or its digest.
        found: String,
    },
    /// Processes do different things in the same call.
    #[error("{difference}: all processes make the same calls with the same batches")]
    Diverged {
        /// The other rank.
        rank: RankIndex,
        /// What differs, in words.
        difference: String,
    },
    /// Another process has ended its pipeline.
    #[error(
        "rank {rank} has ended its pipeline before this call: its own error, if there is one, says why"
    )]
    Left {
        /// The other rank.
        rank: RankIndex,
    },
    /// Another process sent bytes that are no message.
    #[error(
        "rank {rank} sent bytes that are no message of this pipeline: do all processes run the same program?"
    )]
    Frame {
        /// The sender.
        rank: RankIndex,
    },
    /// A message to another process can't be read from its device.
    #[error("rank {rank} can't read {message} from its device to send it")]
    Unsent {
        /// The sender.
        rank: RankIndex,
        /// The message.
        message: String,
        /// The error of the device.
        source: Box<FakeError>,
    },
}
