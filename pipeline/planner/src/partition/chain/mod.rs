//! The partitioner for contiguous stages, optimal for its [cost model](crate::cost_model).
//!
//! | file | contents |
//! |---|---|
//! | `ranges` | bytes that a stage of any range of blocks reads, holds and sends |
//! | `stages` | time and memory of such a stage on its rank |
//! | `search` | the dynamic program |
//! | `problem` | the inputs of all searches |
//! | `solve` | positions of cuts, and the check against the memory that the schedule requires |
//! | `explain` | why no cuts fit |
//!
//! Bytes of a stage are not sums over blocks: a value that several blocks of a stage read is received
//! and kept once. So each item adds its bytes to the ranges that use it, which form rectangles in the
//! table of all ranges.

mod explain;
mod problem;
mod ranges;
mod search;
mod solve;
mod stages;

pub use solve::{Chained, chain, chain_by_model};
