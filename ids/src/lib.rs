//! Identifiers and texts that all crates share, without Burn: the path of a parameter, the indices of ranks, stages and
//! micro-batches, and the text forms of errors, bytes, times and counts.

mod index;
mod path;
pub mod text;

pub use index::{MicroBatchIndex, RankIndex, StageIndex};
pub use path::ParameterPath;
pub use text::with_causes;
