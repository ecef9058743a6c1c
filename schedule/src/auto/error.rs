//! Why there is no schedule to find.

use thiserror::Error;

use crate::error::VerifyError;
use crate::index::RankIndex;

/// Why [`auto`](crate::auto()) finds no schedule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AutoError {
    /// The stages, the map, the dependencies or the costs do not fit each other, or the edges form a
    /// circle.
    #[error("there is no schedule for these stages")]
    Step(#[from] VerifyError),
    /// Programs that wait for each other's weight gradients, which no list can run.
    #[error("the edges of the stages form a circle: remove one of them")]
    Circle,
    /// A rank may hold less than a single micro-batch needs.
    ///
    /// `needed` is what one micro-batch at a time makes the rank hold. No schedule needs less if
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
        /// The bytes that it may hold.
        limit: u64,
    },
}
