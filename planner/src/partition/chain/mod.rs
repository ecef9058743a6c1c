//! The exact optimum over contiguous stages.
//!
//! | file | what is in it |
//! |---|---|
//! | `model` | the time of a step: a maximum and a sum over stages |
//! | `flight` | what a schedule makes a stage keep at a time |
//! | `ranges` | bytes that a stage of any blocks reads, holds and sends |
//! | `stages` | time and memory of such a stage on its rank |
//! | `times` | those that were worked out before |
//! | `search` | the best cuts among given places |
//! | `zoom` | chains with too many places for one table |
//! | `solve` | all of it, and the check against what the schedule really holds |
//! | `explain` | why nothing fits |
//!
//! Values are not sums over blocks: one that several blocks of a stage read comes and is kept once. So
//! each item adds its bytes to the ranges that use it, which are rectangles in the table of all ranges.
//!
//! No place for a cut is left out because a neighbour looks better: with a cut on both sides of a block
//! that costs nothing, moving one of them leaves a stage without blocks, so such a place is needed by
//! some cuts, whatever is near it. What can't be better is left out by bounds instead.

pub mod cases;
mod explain;
mod flight;
mod model;
mod ranges;
mod search;
mod solve;
mod stages;
#[cfg(test)]
mod tests;
mod times;
mod zoom;

pub use solve::{ChainOptions, Chained, chain};
