//! Copies of a checkpoint, unchanged, in another store.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

use tinderbox_deferred::Observer;

use super::ToolError;
use crate::{
    Checkpoint, CheckpointMeta, Run, SaveError,
    format::encode_manifest,
    parallel::parallel,
    read::default_threads,
    store::{Store, join},
    write::failed,
};

/// Options of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyOptions {
    /// Whether an existing checkpoint of the step is replaced, atomically.
    pub replace: bool,
}

/// Copies a checkpoint to a run, which may be in another store; returns the directory. Every file has the
/// bytes of the original, except the manifest: its id is the copy's own, since ids are unique, so that a copy is
/// published, replaced and cleaned up like any other save; and unknown fields of files, tensors and chunks are left
/// out.
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
    let attempt = to.begin(CheckpointMeta {
        replace: options.replace,
        ..CheckpointMeta::new(manifest.step, 1)
    })?;
    let bytes = manifest.files.iter().map(|file| file.size_bytes).sum();
    progress.begin(manifest.tensors.len(), bytes);
    let (store, dir) = attempt.place_to_write();
    let stop = AtomicBool::new(false);
    let copied = parallel(default_threads(), 0..manifest.files.len(), |position| {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let copied = copy_file(checkpoint, position, store, dir, progress);
        stop.fetch_or(copied.is_err(), Ordering::Relaxed);
        copied
    });
    copied.into_iter().collect::<Result<(), ToolError>>()?;
    for (name, bytes) in checkpoint.documents()? {
        let path = join(dir, name);
        store
            .put(&path, &bytes)
            .map_err(failed(store, "write", &path))?;
    }
    let mut manifest = manifest.clone();
    manifest.attempt = attempt.handle().attempt();
    let bytes = encode_manifest(&manifest).map_err(SaveError::from)?;
    attempt.handle().check_written(&manifest.files)?;
    let place = attempt.publish_manifest(&bytes)?;
    progress.end();
    Ok(place)
}

fn copy_file(
    checkpoint: &Checkpoint,
    position: usize,
    store: &dyn Store,
    dir: &str,
    progress: &dyn Observer,
) -> Result<(), ToolError> {
    let path = join(dir, &checkpoint.manifest().files[position].name);
    let mut file = store
        .create(&path)
        .map_err(failed(store, "create", &path))?;
    checkpoint.for_each_piece(position, |bytes| {
        let written = file.write_all(bytes);
        written.map_err(failed(store, "write", &path))?;
        progress.advanced(bytes.len() as u64);
        Ok::<(), ToolError>(())
    })?;
    Ok(file.finish().map_err(failed(store, "write", &path))?)
}
