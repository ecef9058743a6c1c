//! The environment of the parts, and how they measure.

use std::time::Instant;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::Device;
use tinderbox::{Batch, Pipeline};

use crate::flags::Flags;
use crate::size::Size;

/// The environment of every part.
#[derive(Debug)]
pub struct Bench {
    /// The device to check.
    pub device: Device,
    /// The sizes.
    pub size: Size,
    /// The command line.
    pub flags: Flags,
}

/// Waits until the device has completed all work that the ranks have queued; each rank has its own stream.
pub fn settle<M: Module + Sync + 'static, B: Batch>(pipeline: &mut Pipeline<M, B>) -> Result<()> {
    let done = pipeline.on_ranks(|_, stages| match stages.first() {
        Some(stage) => stage.device().sync(),
        None => Ok(()),
    })?;
    Ok(done.into_iter().collect::<Result<(), _>>()?)
}

/// Returns the result of some work, and its time in seconds.
pub fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let begun = Instant::now();
    let made = work()?;
    Ok((made, begun.elapsed().as_secs_f64()))
}

/// Returns the median of some times, if there are any.
pub fn median(mut seconds: Vec<f64>) -> Option<f64> {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied()
}
