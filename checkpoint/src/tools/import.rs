//! Import of plain `safetensors` files as a checkpoint.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{
    ToolError,
    assign::{Group, balance},
    save::save,
};
use crate::{CheckpointMeta, Pretrained, RankSave, Role, Run, SaveData, SaveTensor};
use tinderbox_deferred::Observer;

/// Options of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportOptions {
    /// The step of the checkpoint.
    pub step: u64,
    /// Number of ranks; whole tensors are assigned to ranks so that their bytes are balanced.
    pub world_size: u32,
    /// Whether an existing checkpoint of the step is replaced, atomically.
    pub replace: bool,
}

impl Default for ImportOptions {
    /// Step 0, one rank, no replacement.
    fn default() -> Self {
        Self {
            step: 0,
            world_size: 1,
            replace: false,
        }
    }
}

/// Saves the tensors of a plain `safetensors` file as the parameters of a checkpoint, or those of a directory
/// in Hugging Face's form: the files listed in `model.safetensors.index.json`, or without it
/// `model.safetensors`. Returns the directory of the step.
///
/// Copies values unchanged: a PyTorch `Linear` stays `[out, in]`, whereas Burn has `[in, out]`. The files
/// have no digests, so damage in them is not detected. [`Pretrained`] opens them.
///
/// Time: one pass over the files to read and one to write. Memory: the headers of all files, and a piece of 8
/// MiB for each of up to 4 threads.
///
/// # Errors
///
/// The errors of [`Pretrained::open`]; an error if the step exists and is not to be replaced, or if an I/O
/// operation fails. Nothing is published then.
pub fn import(
    from: &Path,
    to: &Run,
    options: &ImportOptions,
    progress: &dyn Observer,
) -> Result<PathBuf, ToolError> {
    let weights = Pretrained::open(from)?;
    let groups: BTreeMap<Group<'_>, u64> = weights
        .tensors()
        .map(|tensor| ((Role::Model, &*tensor.name), tensor.bytes()))
        .collect();
    if groups.is_empty() {
        return Err(ToolError::NoParameters {
            path: from.to_owned(),
        });
    }
    let attempt = to.begin(CheckpointMeta {
        replace: options.replace,
        ..CheckpointMeta::new(options.step, options.world_size)
    })?;
    let ranks = balance(&groups, options.world_size);
    let of_rank = |rank: u32| {
        let ours = weights
            .tensors()
            .filter(|tensor| ranks.get(&(Role::Model, &*tensor.name)) == Some(&rank));
        let tensors = ours.map(|tensor| {
            let (checkpoint, entry) = (weights.checkpoint().clone(), Box::new(tensor.clone()));
            let data = SaveData::Saved(checkpoint, entry, tensor.region());
            SaveTensor::whole(&tensor.name, Role::Model, data)
        });
        RankSave {
            tensors: tensors.collect(),
            ..RankSave::default()
        }
    };
    let size = (groups.len(), groups.values().sum());
    Ok(save(attempt, size, of_rank, progress)?)
}
