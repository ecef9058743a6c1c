//! Resharding of a checkpoint for another number of ranks.

use std::path::PathBuf;
use std::sync::Arc;

use tinderbox_deferred::Observer;

use super::save::save;
use super::{Cut, SaveOptions, ToolError};
use crate::{Checkpoint, CheckpointMeta, Run, SaveTensor};

/// Options of a reshard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReshardOptions {
    /// The division of tensors over ranks.
    pub cut: Cut,
    /// Whether an existing checkpoint of the step is replaced, atomically.
    pub replace: bool,
}

/// Saves a checkpoint again as if `world_size` ranks had saved it, to a run, which may be its own; returns
/// the directory. Keeps values, step, seed, data position, metadata, plan, types of modules, scalars, tied names and
/// block size.
///
/// Tensors of optimizer state named `optimizer.<path>.<field>` are assigned to the rank of the parameter with
/// this path; they are balanced as one group, the largest first to the rank with the fewest bytes. Scalars
/// with such a name are assigned to the same rank, all others to rank 0.
///
/// Time: one pass over the values to read and one to write. Memory: a few pieces of 8 MiB for each of up to 4
/// threads, and a copy of the manifest.
///
/// # Errors
///
/// Returns an error if the step exists and is not to be replaced, the number of ranks is invalid, a block is
/// damaged, or an I/O operation fails. Nothing is published then.
pub fn reshard(
    checkpoint: &Checkpoint,
    to: &Run,
    world_size: u32,
    options: &ReshardOptions,
    progress: &dyn Observer,
) -> Result<PathBuf, ToolError> {
    let manifest = checkpoint.manifest();
    let shared = Arc::new(checkpoint.clone());
    let tensors = manifest.tensors.iter();
    let tensors = tensors.map(|tensor| SaveTensor::of_checkpoint(&shared, tensor, None));
    let tensors: Vec<SaveTensor> = tensors.collect();
    let meta = CheckpointMeta {
        seed: manifest.seed,
        data_position: manifest.data_position,
        metadata: manifest.metadata(),
        plan: checkpoint.plan()?.unwrap_or_default(),
        modules: manifest.modules(),
        settings: manifest.settings(),
        numerics: manifest.numerics(),
        block_size: Some(manifest.block_bytes),
        replace: options.replace,
        unknown_fields: manifest.unknown_fields().clone(),
        ..CheckpointMeta::new(manifest.step, world_size)
    };
    let cut = SaveOptions {
        cut: options.cut,
        ..SaveOptions::default()
    };
    save(&tensors, checkpoint.scalars(), to, meta, &cut, progress)
}
