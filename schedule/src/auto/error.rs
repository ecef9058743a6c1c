//! Errors of the search.

use thiserror::Error;

use crate::error::VerifyError;
use crate::index::RankIndex;

/// An error of [`auto`](crate::auto()).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AutoError {
    /// The stages, the map, the dependencies or the costs are inconsistent, or the edges form a
    /// cycle.
    #[error("there is no schedule for these stages")]
    Verify(#[from] VerifyError),
    /// Programs that wait for each other's weight gradients, which no list can run.
    #[error("the edges of the stages form a cycle: remove one of them")]
    Circle,
    /// A rank's limit is below what a single micro-batch needs.
    ///
    /// `needed` is what the rank holds with one micro-batch at a time. No schedule needs less if
    /// every stage's backward comes after the forwards of all stages, as in a chain.
    #[error(
        "rank {rank} holds {needed} bytes with one micro-batch in flight, and {limit} is its limit: \
         make the micro-batches smaller, give the rank fewer layers, or raise its limit"
    )]
    Memory {
        /// The lowest such rank.
        rank: RankIndex,
        /// The bytes of its stages and of one micro-batch.
        needed: u64,
        /// The rank's limit in bytes.
        limit: u64,
    },
}
