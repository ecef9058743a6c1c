//! Locations of elements: pure functions on boxes.

mod pieces;
mod runs;
mod tiling;

pub(crate) use pieces::pieces;
pub(crate) use runs::{ElementRun, runs};
pub(crate) use tiling::MAX_CHUNKS;
pub use tiling::check_tiling;
