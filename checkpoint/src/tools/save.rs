//! Saves all ranks of a checkpoint from one process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tinderbox_deferred::{Observer, process_bytes};

use super::ToolError;
use super::division::{Division, TensorSplit};
use crate::format::MAX_WORLD_SIZE;
use crate::{
    BlockSize, CheckpointMeta, RankSave, Role, Run, SaveError, SaveSize, SaveTensor, Scalar,
};

/// The timeout of the publication. It never expires, because all parts exist before the wait starts.
const PARTS_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of files that are written at the same time: more do not increase disk throughput.
const MAX_THREADS: usize = 4;
/// Bytes that a process needs in addition to the known bytes: stacks, headers, and memory that its allocator can't reuse.
const SPARE_BYTES: u64 = 16 << 20;

/// Options of saving all ranks from one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaveOptions {
    /// The division of tensors over ranks.
    pub split: TensorSplit,
    /// The bytes of memory that the process may have, including the bytes that it already has. By default, 4 files are written
    /// at the same time.
    pub memory_bytes: Option<u64>,
}

/// Saves tensors as if `meta.world_size` ranks had saved them, to a run; returns the directory of the step.
///
/// Tensors of [sources](SaveTensor::of_source) and [other checkpoints](SaveTensor::of_saved) are read or computed in pieces
/// when they are written, so that a model of any size is saved with the memory of some pieces.
///
/// Time: one pass over the values. Memory: for each file that is written at the same time 1 MiB and the
/// [`working_bytes`](SaveTensor::working_bytes) of one tensor; and a copy of the manifest.
///
/// # Errors
///
/// Returns an error in these cases; nothing is published then:
///
/// - The memory limit is too low. The error contains the least limit.
/// - The step exists and is not to be replaced, or has a state of the optimizer, and the tensors have no state.
/// - The number of ranks is invalid, a value can't be read or computed, or an I/O operation fails.
pub fn save_tensors(
    tensors: &[SaveTensor],
    to: &Run,
    meta: CheckpointMeta,
    options: &SaveOptions,
    progress: &dyn Observer,
) -> Result<PathBuf, ToolError> {
    let has_state = tensors.iter().any(|tensor| tensor.role == Role::State);
    // A checkpoint that can't be opened may be replaced.
    if meta.replace
        && !has_state
        && let Ok(existing) = to.open(meta.step)
        && (existing.tensors(Role::State).next().is_some()
            || !existing.scalars().is_empty()
            || (existing.manifest().data_position > 0 && meta.data_position == 0))
    {
        let path = existing.dir().to_owned();
        return Err(ToolError::LosesState { path });
    }
    save(tensors, &BTreeMap::new(), to, meta, options, progress)
}

/// Saves like [`save_tensors`], with scalars. The contents of a rank are created when the rank is written, because descriptions
/// of tensors include all digests.
pub(super) fn save(
    tensors: &[SaveTensor],
    scalars: &BTreeMap<String, Scalar>,
    to: &Run,
    mut meta: CheckpointMeta,
    options: &SaveOptions,
    progress: &dyn Observer,
) -> Result<PathBuf, ToolError> {
    let division = Division::of(tensors, scalars, meta.world_size, options.split);
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
    meta.size = Some(size);
    let attempt = match to.begin(meta.clone()) {
        Err(SaveError::ManifestSize { .. }) => {
            // More chunks may require larger blocks.
            meta.block_size = None;
            to.begin(meta)
        }
        started => started,
    }?;
    let bytes = tensors.iter().map(SaveTensor::bytes).sum();
    progress.begin(tensors.len(), bytes);
    let handle = attempt.handle().threads(threads);
    for rank in 0..handle.world_size() {
        let RankSave { tensors, scalars } = division.of_rank(rank);
        handle.write_rank(rank, &tensors, &scalars, &Advances(progress))?;
    }
    let dir = attempt.publish(PARTS_TIMEOUT)?;
    progress.end();
    Ok(dir)
}

/// Returns how many files can be written at the same time within a memory limit.
fn threads_within(
    limit_bytes: u64,
    tensors: &[SaveTensor],
    manifest_bytes: u64,
) -> Result<usize, ToolError> {
    /// The write buffer of a file.
    const BUFFER_BYTES: u64 = 1 << 20;
    /// The manifest is in memory as parts, merged, as text, and as the result of reading the text.
    const MANIFESTS: u64 = 8;
    let needs = tensors.iter().map(|t| (t.working_bytes(), &*t.name));
    let (most, tensor) = needs.max().unwrap_or_default();
    let each = most.saturating_add(BUFFER_BYTES);
    let of_process = process_bytes().ok_or(ToolError::UnknownMemory)?;
    let manifests = MANIFESTS.saturating_mul(manifest_bytes);
    let besides = of_process.saturating_add(SPARE_BYTES);
    let besides = besides.saturating_add(manifests);
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

/// Reports only advances: the bytes of all ranks were announced at once.
struct Advances<'a>(&'a dyn Observer);

impl Observer for Advances<'_> {
    fn advanced(&self, bytes: u64) {
        self.0.advanced(bytes);
    }
}
