//! Errors of generating a schedule.

use thiserror::Error;

use super::kind::{ChunkCounts, ScheduleKind};

/// An error of generating a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// No schedule has the name.
    #[error("`{name}` is not a schedule{}: write one of {}", hint(*nearest), names())]
    Name {
        /// The name.
        name: String,
        /// The schedule whose name has the longest prefix in common.
        nearest: Option<ScheduleKind>,
    },
    /// A number of chunks per rank that the schedule does not support.
    #[error(
        "{kind} runs {expected} per rank, found {found}: change the number of chunks, which are the stages of a rank, or use another schedule"
    )]
    Chunks {
        /// The schedule.
        kind: ScheduleKind,
        /// The supported numbers.
        expected: ChunkCounts,
        /// The requested number.
        found: usize,
    },
    /// More actions than the limit.
    #[error(
        "{ranks} ranks with {chunks} chunks and {micro_batches} micro-batches are more than {limit} \
         forwards: make the step smaller"
    )]
    TooLarge {
        /// The number of ranks.
        ranks: usize,
        /// The number of chunks per rank.
        chunks: usize,
        /// The number of micro-batches.
        micro_batches: usize,
        /// The largest product of the three.
        limit: usize,
    },
}

/// Returns a suggestion.
fn hint(nearest: Option<ScheduleKind>) -> String {
    nearest.map_or_else(String::new, |kind| format!(" (did you mean `{kind}`?)"))
}

/// Returns all names.
fn names() -> String {
    ScheduleKind::ALL.map(ScheduleKind::name).join(", ")
}
