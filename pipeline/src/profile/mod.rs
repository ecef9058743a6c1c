//! Measures the time and memory of each block of a model on a device.

mod blocks;
mod profiler;
mod report;
mod run;
mod together;

pub use profiler::Profiler;
pub use report::{BlockProfile, BlockSizes, PROFILE_VERSION, Profile, Spread};
pub(crate) use together::Repeated;
