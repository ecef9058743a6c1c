//! Errors of checks of memory.

use tinderbox_deferred::ParameterPath;

use super::texts::numbered;
use crate::schedule::RankIndex;

/// A wrong value in the memory of a rank, which no replica can repair.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DamageError {
    /// A value has changed since the last step.
    #[error(
        "rank {rank}: {} has changed in memory since step {step} ended, and no other replica has its value: test the \
         machine's memory, and resume from a checkpoint",
        path.as_ref().map_or_else(|| "the state of the optimizer".to_owned(), |path| format!("`{path}`"))
    )]
    Changed {
        /// The rank.
        rank: RankIndex,
        /// The number of training steps done.
        step: u64,
        /// The parameter; `None` for the state of the optimizer.
        path: Option<ParameterPath>,
    },
    /// Replicas hold different values, each the same since the last step.
    #[error(
        "since step {step}, {} hold different values of `{path}`, and no value is the same on most of them: test the memory and \
         the links of their machines, and resume from a checkpoint",
        numbered(ranks)
    )]
    Differs {
        /// The ranks that hold the parameter.
        ranks: Vec<RankIndex>,
        /// The number of training steps done.
        step: u64,
        /// The parameter.
        path: ParameterPath,
    },
}
