//! Locations of elements: pure functions on boxes.

mod pieces;
mod tiling;

pub(crate) use pieces::pieces;
pub(crate) use tiling::MAX_CHUNKS;
pub use tiling::check_tiling;
