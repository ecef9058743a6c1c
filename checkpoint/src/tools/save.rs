//! Saves all ranks of a checkpoint from one process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tinderbox_deferred::{Observer, process_bytes};

use super::ToolError;
use super::division::{Cut, Division};
use crate::format::MAX_WORLD_SIZE;
use crate::{
    BlockSize, CheckpointMeta, RankSave, Role, Run, SaveError, SaveSize, SaveTensor, Scalar,
};

/// Never reached, because all parts exist before the wait begins.
const PARTS_TIMEOUT: Duration = Duration::from_secs(60);
/// Files that are written at a time: more do not increase disk throughput.
const MAX_THREADS: usize = 4;
/// Bytes that a process needs in addition to what is known: stacks, headers, and memory that its allocator can't reuse.
const SPARE_BYTES: u64 = 16 << 20;

/// Options of saving all ranks from one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaveOptions {
    /// The division of tensors over ranks.
    pub cut: Cut,
    /// The bytes of memory that the process may have, those that it has already among them. By default, 4 files are written at a
    /// time.
    pub memory_bytes: Option<u64>,
}

/// Saves tensors as if `meta.world_size` ranks had saved them, to a run; returns the directory of the step.
///
/// Tensors of [sources](SaveTensor::of_source) and [other checkpoints](SaveTensor::of_checkpoint) are read or computed in pieces
/// when they are written, so that a model of any size is saved with the memory of some pieces.
///
/// Time: one pass over the values. Memory: for each file that is written at a time 1 MiB, and
/// [`working_bytes`](SaveTensor::working_bytes) of one tensor; and a copy of the manifest.
///
/// # Errors
///
/// Returns an error if the memory limit is too low, with the least one; if the step exists and is not to be replaced, or has a state
/// of the optimizer and the tensors have none; if the number of ranks is invalid, a value can't be read or computed, or an I/O
/// operation fails. Nothing is published then.
pub fn save_tensors(
    tensors: &[SaveTensor],
    to: &Run,
    meta: CheckpointMeta,
    options: &SaveOptions,
    progress: &dyn Observer,
) -> Result<PathBuf, ToolError> {
    let has_state = tensors.iter().any(|tensor| tensor.role == Role::State);
    // What can't be opened may be replaced.
    if meta.replace
        && !has_state
        && let Ok(existing) = to.open(meta.step)
        && (existing.tensors(Role::State).next().is_some()
            || !existing.scalars().is_empty()
            || (existing.manifest().data_position > 0 && meta.data_position == 0))
    {
        return Err(ToolError::LosesState {
            path: existing.dir().to_owned(),
        });
    }
    save(tensors, &BTreeMap::new(), to, meta, options, progress)
}

/// As [`save_tensors`], with scalars. The contents of a rank are created when the rank is written, because descriptions of tensors
/// include all their digests.
pub(super) fn save(
    tensors: &[SaveTensor],
    scalars: &BTreeMap<String, Scalar>,
    to: &Run,
    meta: CheckpointMeta,
    options: &SaveOptions,
    progress: &dyn Observer,
) -> Result<PathBuf, ToolError> {
    let division = Division::of(tensors, scalars, meta.world_size, options.cut);
    let mut size = SaveSize::default();
    // An invalid number of ranks is rejected when the attempt begins.
    for rank in 0..meta.world_size.min(MAX_WORLD_SIZE) {
        size.add_rank(&division.of_rank(rank));
    }
    let threads = match options.memory_bytes {
        Some(limit) => {
            let manifest = size.manifest_bytes(&meta, BlockSize::default());
            threads_within(limit, tensors, manifest)?
        }
        None => MAX_THREADS,
    };
    let meta = CheckpointMeta {
        size: Some(size),
        ..meta
    };
    let attempt = match to.begin(meta.clone()) {
        // More chunks may require larger blocks.
        Err(SaveError::ManifestSize { .. }) => to.begin(CheckpointMeta {
            block_size: None,
            ..meta
        }),
        begun => begun,
    }?;
    let bytes = tensors.iter().map(SaveTensor::bytes).sum();
    progress.begin(tensors.len(), bytes);
    let handle = attempt.handle().threads(threads);
    for rank in 0..handle.world_size() {
        let RankSave { tensors, scalars } = division.of_rank(rank);
        handle.write_rank_with(rank, &tensors, &scalars, &Begun(progress))?;
    }
    let dir = attempt.publish(PARTS_TIMEOUT)?;
    progress.end();
    Ok(dir)
}

/// Returns how many files can be written at a time within a memory limit.
fn threads_within(
    limit_bytes: u64,
    tensors: &[SaveTensor],
    manifest_bytes: u64,
) -> Result<usize, ToolError> {
    /// Of a file.
    const BUFFER_BYTES: u64 = 1 << 20;
    /// The manifest exists in parts, merged, as text and as it is read again.
    const MANIFESTS: u64 = 8;
    let needs = tensors.iter();
    let needs = needs.map(|tensor| (tensor.working_bytes(), &*tensor.name));
    let (most, tensor) = needs.max().unwrap_or_default();
    let each = most.saturating_add(BUFFER_BYTES);
    let of_process = process_bytes().ok_or(ToolError::UnknownMemory)?;
    let manifests = MANIFESTS.saturating_mul(manifest_bytes);
    let besides = [SPARE_BYTES, manifests].into_iter();
    let besides = besides.fold(of_process, u64::saturating_add);
    let threads = limit_bytes.saturating_sub(besides) / each;
    if threads == 0 {
        return Err(ToolError::Memory {
            memory_bytes: limit_bytes,
            least_bytes: besides.saturating_add(each),
            tensor: tensor.to_owned(),
        });
    }
    Ok(threads.min(MAX_THREADS as u64) as usize)
}

/// Progress of work whose bytes were announced for all ranks at once.
struct Begun<'a>(&'a dyn Observer);

impl Observer for Begun<'_> {
    fn advanced(&self, bytes: u64) {
        self.0.advanced(bytes);
    }
}
