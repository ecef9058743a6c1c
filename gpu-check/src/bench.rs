//! The environment of the parts.

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
