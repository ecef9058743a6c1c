//! One attempt to save a step.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    AttemptHandle,
    clean::remove_attempt,
    durable::{create_run_dir, failed, sync_dir, write_durable},
    merge::merge,
};
use crate::{
    AttemptId, BlockSize, Digest, FormatError, SaveError,
    format::{
        INDEX_FILE, IndexEntry, MANIFEST_FILE, MARKER_FILE, MARKER_FORMAT, MAX_WORLD_SIZE,
        Manifest, Marker, Part, attempt_dir_name, encode_index, encode_manifest, part_file_name,
        step_dir_name,
    },
};

/// The largest metadata of a caller in bytes of JSON: it is for hashes and settings, not for tensors.
const MAX_METADATA_BYTES: usize = 1 << 20;

/// What the coordinator knows of a checkpoint beside its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointMeta {
    /// Optimizer steps that were done; it names the directory.
    pub step: u64,
    /// Seed of the run.
    pub seed: u64,
    /// How far the data was read, in the caller's unit.
    pub data_position: u64,
    /// Number of ranks that save, 1 to 65,536.
    pub world_size: u32,
    /// The caller's own: a plan's hash, a model's configuration; at most 1 MiB of JSON.
    pub metadata: serde_json::Value,
    /// Bytes that one digest covers.
    pub block_size: BlockSize,
}

impl CheckpointMeta {
    /// A step of a world; seed and data position 0, no metadata, blocks of 1 MiB.
    pub fn new(step: u64, world_size: u32) -> Self {
        Self {
            step,
            seed: 0,
            data_position: 0,
            world_size,
            metadata: serde_json::Value::Null,
            block_size: BlockSize::default(),
        }
    }
}

/// One attempt to save a step, on the coordinator: rank 0, or whoever starts the ranks.
///
/// Dropped before it is published, it removes its directory and everything in it.
#[derive(Debug)]
pub struct Attempt {
    handle: AttemptHandle,
    meta: CheckpointMeta,
    run_dir: PathBuf,
    published: bool,
    // Locked while the attempt lives: `clean` can tell it from a dead one, also after a kill.
    _lock: File,
}

impl Attempt {
    /// Opens an attempt in a run's directory, which is made when it is not there.
    ///
    /// # Errors
    ///
    /// When the step has been published already, or the directory can't be made.
    pub fn begin(run_dir: impl Into<PathBuf>, meta: CheckpointMeta) -> Result<Self, SaveError> {
        let run_dir = run_dir.into();
        check_meta(&meta)?;
        refuse_existing(&run_dir.join(step_dir_name(meta.step)))?;
        create_run_dir(&run_dir)?;
        let attempt = AttemptId::fresh();
        let dir = run_dir.join(attempt_dir_name(meta.step, attempt));
        fs::create_dir(&dir).map_err(failed("create", &dir))?;
        let marker = Marker {
            format: MARKER_FORMAT.to_owned(),
            attempt,
            step: meta.step,
        };
        let lock = mark(&dir.join(MARKER_FILE), &marker).inspect_err(|_| {
            // The first error is the one to report.
            let _ = remove_attempt(&dir);
        })?;
        let handle = AttemptHandle {
            dir,
            attempt,
            world_size: meta.world_size,
            block_size: meta.block_size,
        };
        Ok(Self {
            handle,
            meta,
            run_dir,
            published: false,
            _lock: lock,
        })
    }

    /// What a rank needs to write its part.
    pub fn handle(&self) -> AttemptHandle {
        self.handle.clone()
    }

    /// Waits until every rank has written its part of this attempt, proves that the parts are a whole
    /// checkpoint, and makes it appear under its name; gives the directory.
    ///
    /// # Errors
    ///
    /// When a part does not come in time (the missing ranks are named), is of another attempt or does
    /// not fit the others; when the step is there already; when the disk fails. Nothing is published
    /// then, except where syncing the run's directory fails, which is after the commit.
    pub fn publish(mut self, timeout: Duration) -> Result<PathBuf, SaveError> {
        let parts = self.handle.wait_for_parts(timeout)?;
        let part_names: Vec<String> = parts.iter().map(|p| part_file_name(p.rank)).collect();
        let dir = self.handle.dir.clone();
        let manifest = self.manifest(parts)?;
        let meta = |source| SaveError::Meta { source };
        let bytes = encode_manifest(&manifest).map_err(meta)?;
        write_durable(&dir, MANIFEST_FILE, &bytes)?;
        for name in part_names {
            let part = dir.join(name);
            fs::remove_file(&part).map_err(failed("remove", &part))?;
        }
        sync_dir(&dir)?;
        let target = self.run_dir.join(step_dir_name(self.meta.step));
        refuse_existing(&target)?;
        fs::rename(&dir, &target).map_err(|source| {
            // Somebody may have published the step since the check: a rename never replaces a
            // directory that has files.
            if source.kind() == std::io::ErrorKind::DirectoryNotEmpty {
                SaveError::StepExists {
                    path: target.clone(),
                }
            } else {
                failed("publish", &target)(source)
            }
        })?;
        self.published = true;
        // Left there after a kill, the marker does no harm: no reader looks at it.
        let _ = fs::remove_file(target.join(MARKER_FILE));
        sync_dir(&self.run_dir)?;
        Ok(target)
    }

    /// The manifest of all parts; writes the Hugging Face index on the way, whose digest it holds.
    fn manifest(&self, parts: Vec<Part>) -> Result<Manifest, SaveError> {
        let merged = merge(parts)?;
        for file in &merged.files {
            self.handle.check_written(file)?;
        }
        let index = encode_index(&merged.tensors).map_err(|source| SaveError::Meta { source })?;
        if let Some(bytes) = &index {
            write_durable(&self.handle.dir, INDEX_FILE, bytes)?;
        }
        let index = index.map(|bytes| IndexEntry {
            size_bytes: bytes.len() as u64,
            digest: Digest::of(&bytes),
        });
        let meta = self.meta.clone();
        Ok(Manifest::new(
            self.handle.attempt,
            meta,
            merged.files,
            index,
            merged.tensors,
            merged.scalars,
        ))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.published {
            return;
        }
        if let Err(error) = remove_attempt(&self.handle.dir) {
            tracing::warn!(
                dir = %self.handle.dir.display(), %error,
                "an abandoned attempt is left; `clean` removes it once this process has ended"
            );
        }
    }
}

fn check_meta(meta: &CheckpointMeta) -> Result<(), SaveError> {
    let refuse = |source| SaveError::Meta { source };
    if meta.world_size == 0 || meta.world_size > MAX_WORLD_SIZE {
        return Err(refuse(FormatError::WorldSize {
            found: meta.world_size,
            limit: MAX_WORLD_SIZE,
        }));
    }
    // Found now and not after a save: JSON that is nested deeper than readers take.
    let bytes = serde_json::to_vec(&meta.metadata)
        .and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).map(|_| bytes.len()))
        .map_err(|source| refuse(FormatError::Json { source }))?;
    if bytes > MAX_METADATA_BYTES {
        return Err(refuse(FormatError::TooLarge {
            found_bytes: bytes as u64,
            limit_bytes: MAX_METADATA_BYTES as u64,
        }));
    }
    Ok(())
}

fn refuse_existing(step_dir: &Path) -> Result<(), SaveError> {
    match fs::symlink_metadata(step_dir) {
        Ok(_) => Err(SaveError::StepExists {
            path: step_dir.to_owned(),
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("look at", step_dir)(error)),
    }
}

/// Makes the marker: locked before it has contents, so that whoever sees its contents unlocked knows
/// that its attempt is dead.
fn mark(path: &Path, marker: &Marker) -> Result<File, SaveError> {
    let mut file = File::create_new(path).map_err(failed("create", path))?;
    if let Err(error) = file.lock() {
        // Without locks `clean` can't lock it either, and leaves it alone.
        tracing::warn!(path = %path.display(), %error, "this file system has no locks");
    }
    let bytes = serde_json::to_vec(marker).map_err(|source| SaveError::Meta {
        source: FormatError::Json { source },
    })?;
    file.write_all(&bytes).map_err(failed("write", path))?;
    file.sync_all().map_err(failed("sync", path))?;
    // `clean` takes a marker without contents for a dead one; from here on it has them.
    fs::metadata(path).map_err(failed("keep, because `clean` ran meanwhile,", path))?;
    Ok(file)
}
