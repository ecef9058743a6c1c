//! What stays in memory of values that are read in a known, repeating order, for a model that does not fit.

mod budget;
mod plan;
mod predict;
mod state;
#[cfg(test)]
mod tests;

pub use budget::{MemoryBudget, parse_bytes};
pub use plan::{StreamItem, StreamPlan, StreamVisit};
pub use predict::StreamPrediction;
pub use state::{StreamState, StreamStep};
