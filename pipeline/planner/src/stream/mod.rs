//! Streaming for models larger than memory: the choice of the values that stay, of values that are read in a known,
//! repeating order.

mod budget;
mod plan;
mod predict;
mod state;
#[cfg(test)]
mod tests;

pub use budget::MemoryBudget;
pub use plan::{StreamItem, StreamPlan, StreamVisit};
pub use predict::StreamPrediction;
pub use state::{StreamState, StreamStep};
