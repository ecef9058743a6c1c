//! The partitioner of contiguous stages, optimal for its cost model.
//!
//! | file | contents |
//! |---|---|
//! | `model` | the time of a step: a maximum and a sum over stages |
//! | `ranges` | bytes that a stage of any blocks reads, holds and sends |
//! | `stages` | time and memory of such a stage on its rank |
//! | `search` | the dynamic program |
//! | `solve` | positions of cuts, and the check against what the schedule really holds |
//! | `explain` | why nothing fits |
//!
//! Values are not sums over blocks: one that several blocks of a stage read is received and kept once. So
//! each item adds its bytes to the ranges that use it, which are rectangles in the table of all ranges.

pub mod cases;
mod explain;
mod model;
mod ranges;
mod search;
mod solve;
mod stages;
#[cfg(test)]
mod tests;

pub use solve::{Chained, chain};
