//! Checkpoints saved again: all of one, unchanged or for another number of ranks, or its parameters cast and renamed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use burn::tensor::DType;
use regex::Regex;
use tinderbox_deferred::Observer;

use super::save::save;
use super::{SaveOptions, TensorSplit, ToolError, save_tensors};
use crate::format::encode_manifest;
use crate::parallel::parallel;
use crate::read::{default_threads, renamed};
use crate::store::join;
use crate::{
    Checkpoint, CheckpointMeta, Role, Run, SaveError, SaveTensor, SavedTensors, TensorEntry,
};

/// Options of a conversion.
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    /// The dtype of float parameters, rounded to nearest, ties to even; other parameters are not changed. `None` keeps all.
    pub dtype: Option<DType>,
    /// Renames, one after the other, as in [`LoadOptions::rename`](crate::LoadOptions::rename).
    pub renames: Vec<(Regex, String)>,
    /// The options of the save.
    pub save: SaveOptions,
}

/// Saves the parameters of a checkpoint, or of [`Pretrained`](crate::Pretrained) weights, as a checkpoint; returns the
/// directory of the step. `meta` has the step, the number of ranks and the seed.
///
/// Layouts do not change: a PyTorch `Linear` stays `[out, in]`, whereas Burn has `[in, out]`
/// ([`LoadOptions::pytorch`](crate::LoadOptions::pytorch) loads it). Files of other programs have no digests, so damage in them
/// is not detected.
///
/// Time: one pass over the files to read and one to write. Memory: a piece of 8 MiB, cast, and a block for each of up to 4
/// threads.
///
/// # Errors
///
/// Returns an error if there are no parameters, two would have one name, a pattern matches none, a finite value would become
/// infinite, the memory limit is too low, the step exists and is not to be replaced or has a state of the optimizer, or an I/O
/// operation fails. Nothing is published then.
pub fn convert(
    from: &impl AsRef<SavedTensors>,
    to: &Run,
    meta: CheckpointMeta,
    options: &ConvertOptions,
    progress: &dyn Observer,
) -> Result<PathBuf, ToolError> {
    let saved = from.as_ref();
    let mut names: BTreeMap<String, &str> = BTreeMap::new();
    let mut tensors = Vec::new();
    for entry in saved.tensors(Role::Model) {
        let mut tensor = SaveTensor::of_saved(from, entry, options.dtype);
        let all = std::iter::once(&mut tensor.name).chain(&mut tensor.tied);
        for (was, name) in entry.names().zip(all) {
            *name = renamed(&options.renames, name);
            if let Some(first) = names.insert(name.clone(), was) {
                return Err(ToolError::SameName {
                    first: first.to_owned(),
                    second: was.clone(),
                    name: name.clone(),
                });
            }
        }
        tensors.push(tensor);
    }
    if tensors.is_empty() {
        let path = saved.place().to_owned();
        return Err(ToolError::NoParameters { path });
    }
    if let Some(pattern) = without_match(saved, &options.renames) {
        let pattern = pattern.as_str().to_owned();
        return Err(ToolError::NoMatch { pattern });
    }
    save_tensors(&tensors, to, meta, &options.save, progress)
}

/// Returns the first pattern that matches no name after the renames before it.
fn without_match<'a>(saved: &SavedTensors, renames: &'a [(Regex, String)]) -> Option<&'a Regex> {
    let patterns = renames.iter().enumerate();
    let mut unused = patterns.filter(|(at, (pattern, _))| {
        let mut names = saved.tensors(Role::Model).flat_map(TensorEntry::names);
        !names.any(|name| pattern.is_match(&renamed(&renames[..*at], name)))
    });
    unused.next().map(|(_, (pattern, _))| pattern)
}

/// Options of a reshard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReshardOptions {
    /// The division of tensors over ranks.
    pub split: TensorSplit,
    /// Whether an existing checkpoint of the step is replaced, atomically.
    pub replace: bool,
}

/// Saves a checkpoint again as if `world_size` ranks had saved it, to a run, which may be its own; returns the directory. Keeps
/// values, step, seed, data position, metadata, plan, types of modules, settings, scalars, tied names, block size and unknown
/// fields.
///
/// Tensors of optimizer state named `optimizer.<path>.<field>` are assigned to the rank of the parameter with this path. A
/// parameter and its optimizer state are balanced as one group: the largest group is assigned first, each to the rank with the
/// fewest bytes so far. Scalars with such a name are assigned to the same rank, all others to rank 0.
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
    let tensors = manifest.tensors.iter();
    let tensors = tensors.map(|tensor| SaveTensor::of_saved(checkpoint, tensor, None));
    let tensors: Vec<SaveTensor> = tensors.collect();
    let meta = CheckpointMeta {
        seed: manifest.seed,
        data_position: manifest.data_position,
        metadata: manifest.metadata(),
        plan: checkpoint.plan()?,
        modules: manifest.modules(),
        settings: manifest.settings(),
        numerics: manifest.numerics(),
        block_size: Some(manifest.block_bytes),
        replace: options.replace,
        unknown_fields: manifest.unknown_fields().clone(),
        ..CheckpointMeta::new(manifest.step, world_size)
    };
    let options = SaveOptions {
        split: options.split,
        memory_bytes: None,
    };
    save(&tensors, checkpoint.scalars(), to, meta, &options, progress)
}

/// Options of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyOptions {
    /// Whether an existing checkpoint of the step is replaced, atomically.
    pub replace: bool,
}

/// Copies a checkpoint to a run, which may be in another store; returns the directory. Every file except the manifest has the
/// bytes of the original. The manifest of the copy has an id of its own, because a copy is published, replaced and cleaned up
/// like any other save; and it lacks unknown fields of files, tensors and chunks.
///
/// Time: one pass over the files to read and one to write; digests are checked. Memory: for each of up to 8 threads a
/// header, one block, and what the target holds per file (1 MiB in a directory, up to 40 MiB in a bucket); a copy of
/// the manifest.
///
/// # Errors
///
/// Returns an error if the step exists and is not to be replaced, the checkpoint is damaged, or an I/O
/// operation fails. Then nothing is published, with the exceptions of [`Attempt::publish`](crate::Attempt::publish).
pub fn copy(
    checkpoint: &Checkpoint,
    to: &Run,
    options: &CopyOptions,
    progress: &dyn Observer,
) -> Result<PathBuf, ToolError> {
    let manifest = checkpoint.manifest();
    // One rank: no other process takes part.
    let mut meta = CheckpointMeta::new(manifest.step, 1);
    meta.replace = options.replace;
    let attempt = to.begin(meta)?;
    let bytes = manifest.files.iter().map(|file| file.size_bytes).sum();
    progress.begin(manifest.tensors.len(), bytes);
    let (store, dir) = attempt.place_to_write();
    parallel(default_threads(), 0..manifest.files.len(), |position| {
        let mut file = store.begin(join(dir, &manifest.files[position].name))?;
        checkpoint.for_each_piece(position, |bytes| {
            file.write_all(bytes)?;
            progress.advanced(bytes.len() as u64);
            Ok::<(), ToolError>(())
        })?;
        Ok::<(), ToolError>(file.finish()?)
    })?;
    for (name, bytes) in checkpoint.documents()? {
        store.write(&join(dir, name), &bytes)?;
    }
    let mut manifest = manifest.clone();
    manifest.attempt = attempt.handle().attempt();
    let bytes = encode_manifest(&manifest).map_err(SaveError::from)?;
    attempt.handle().check_written(&manifest.files)?;
    let place = attempt.publish_manifest(&bytes)?;
    progress.end();
    Ok(place)
}
