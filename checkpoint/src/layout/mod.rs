//! Where elements lie: pure functions on boxes.

mod runs;
mod tiling;

pub use runs::{Run, Runs, runs};
pub use tiling::check_tiling;
