//! One attempt to save a step.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use super::{
    AttemptHandle, SaveSize,
    clean::{remove_attempt, remove_replaced},
    merge::merge,
};
use crate::{
    AttemptId, BlockSize, Digest, FormatError, Role, SaveError, TensorEntry,
    format::{
        DocumentEntry, INDEX_FILE, Json, MANIFEST_FILE, MARKER_FILE, MAX_MANIFEST_BYTES,
        MAX_WORLD_SIZE, Manifest, Marker, PLAN_FILE, Part, UnknownFields, attempt_dir_name,
        claim_file_name, encode_index, encode_manifest, metadata, part_file_name, step_dir_name,
    },
    store::{Lock, PublishError, Store, existing, join},
};

/// The size at which a rank begins another file, unless another is chosen: several files are written and
/// read at the same time.
const FILE_BYTES: u64 = 1 << 30;

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
    /// The caller's own: a model's configuration, say; at most 1 MiB of JSON.
    pub metadata: serde_json::Value,
    /// How the model is cut, in the planner's own form; `Null` without one. It has a file of its own, of at most 256 MiB.
    pub plan: serde_json::Value,
    /// Bytes that one digest covers; `None` for 1 MiB, or more when [`Self::size`] is large.
    pub block_size: Option<BlockSize>,
    /// What is to be saved, if it is known.
    pub size: Option<SaveSize>,
    /// The size in bytes at which a rank begins another file; a larger tensor has a file of its own.
    pub file_bytes: u64,
    /// Whether the step may be there already. It is replaced in one instant then.
    pub replace: bool,
    /// Those of [`Manifest::unknown_fields`], when a checkpoint is saved again.
    pub unknown_fields: UnknownFields,
}

impl CheckpointMeta {
    /// A step of a world; seed and data position 0, no metadata, no plan, blocks of 1 MiB, files of
    /// 1 GiB; an earlier checkpoint of the step is not replaced.
    pub fn new(step: u64, world_size: u32) -> Self {
        Self {
            step,
            seed: 0,
            data_position: 0,
            world_size,
            metadata: serde_json::Value::Null,
            plan: serde_json::Value::Null,
            block_size: None,
            size: None,
            file_bytes: FILE_BYTES,
            replace: false,
            unknown_fields: UnknownFields::default(),
        }
    }

    fn check(&self) -> Result<(), FormatError> {
        if self.world_size == 0 || self.world_size > MAX_WORLD_SIZE {
            return Err(FormatError::WorldSize {
                found: self.world_size,
                limit: MAX_WORLD_SIZE,
            });
        }
        if self.file_bytes == 0 {
            return Err(FormatError::FileBytes);
        }
        // Found now and not after a save.
        metadata(&self.metadata).map(drop)
    }
}

/// One attempt to save a step, on the coordinator: rank 0, or whoever starts the ranks.
///
/// Dropped before it is published, it removes its directory and everything in it.
#[derive(Debug)]
pub struct Attempt {
    handle: AttemptHandle,
    meta: CheckpointMeta,
    plan: Option<DocumentEntry>,
    /// Whether its directory is, or may be, a checkpoint's.
    kept: bool,
    // While the attempt lives, it can be told from a dead one, also after a kill.
    _lock: Lock,
}

impl Attempt {
    pub(crate) fn begin(store: Arc<dyn Store>, meta: CheckpointMeta) -> Result<Self, SaveError> {
        meta.check()?;
        let block_size = meta.size.unwrap_or_default().block_size(&meta)?;
        let plan = match &meta.plan {
            serde_json::Value::Null => None,
            plan => {
                let plan = Json::of(plan).and_then(|plan| plan.at_most(MAX_MANIFEST_BYTES));
                Some(plan?)
            }
        };
        if !meta.replace {
            let step_dir = step_dir_name(meta.step);
            // Without renames, what is left of a removed step does not keep another from its name.
            let taken = match store.renames() {
                true => step_dir,
                false => join(&step_dir, MANIFEST_FILE),
            };
            refuse_existing(&*store, &taken)?;
        }
        store.create_root().map_err(failed(&*store, "create", ""))?;
        let marker = Marker::new(AttemptId::fresh(), &meta, block_size);
        let dir = attempt_dir_name(meta.step, marker.attempt);
        store
            .create_dir(&dir)
            .map_err(failed(&*store, "create", &dir))?;
        let bytes = marker.encode()?;
        let path = join(&dir, MARKER_FILE);
        let abandon = |_: &SaveError| {
            // The first error is the one to report.
            let _ = remove_attempt(&*store, &marker);
        };
        // Durable before any other file of the attempt: what a loss of power leaves has its marker.
        let locked = store
            .create_locked(&path, &bytes)
            .and_then(|lock| store.sync_dir(&dir).map(|()| lock));
        let lock = locked
            .map_err(failed(&*store, "make", &path))
            .inspect_err(abandon)?;
        let plan = plan
            .map(|plan| write_document(&*store, &join(&dir, PLAN_FILE), plan.text().as_bytes()))
            .transpose()
            .inspect_err(abandon)?;
        Ok(Self {
            handle: AttemptHandle::new(store, marker),
            meta,
            plan,
            kept: false,
            _lock: lock,
        })
    }

    /// What a rank needs to write its part.
    pub fn handle(&self) -> AttemptHandle {
        self.handle.clone()
    }

    /// Waits until every rank has written its part of this attempt, proves that the parts are a whole
    /// checkpoint, and makes it appear under its name; gives the directory. It waits for any time as long as files
    /// of the attempt appear or grow within each `timeout`; in a bucket a file appears when all of it is written.
    ///
    /// # Errors
    ///
    /// When parts are missing and no file has changed from one look to the next, a `timeout` apart (the missing ranks
    /// are named), a rank has failed, its part is of
    /// another attempt or does not fit the others; when the step is there already; when the disk fails.
    /// Nothing is published then, except where [`SaveError::NotDurable`] says so, and perhaps where a bucket
    /// did not answer: the error says that this could not be learned, and the files stay.
    pub fn publish(mut self, timeout: Duration) -> Result<PathBuf, SaveError> {
        let parts = self.handle.wait_for_parts(timeout)?;
        let ranks: Vec<u32> = parts.iter().map(|part| part.rank).collect();
        let manifest = self.manifest(parts)?;
        let bytes = encode_manifest(&manifest)?;
        let AttemptHandle { store, dir, .. } = &self.handle;
        for rank in ranks {
            let part = join(dir, &part_file_name(rank));
            // Where it is missing, a repeated request has met the work of the first.
            existing(store.remove_file(&part)).map_err(failed(&**store, "remove", &part))?;
        }
        let step = step_dir_name(self.meta.step);
        let replace = self.meta.replace && is_there(&**store, &join(&step, MANIFEST_FILE))?;
        let place = store.place(&step);
        let replaced = match store.publish(dir, &step, &bytes, replace) {
            Ok(replaced) => replaced,
            Err(PublishError::NotDurable { source }) => {
                self.kept = true;
                return Err(SaveError::NotDurable {
                    path: place,
                    source,
                });
            }
            Err(PublishError::Unknown { source }) => {
                self.kept = true;
                return Err(SaveError::Io {
                    action: "learn whether the store has published",
                    path: place,
                    source,
                });
            }
            Err(PublishError::Unpublished { path, source }) => {
                let taken = path == step && is_taken(&source);
                let path = store.place(&path);
                return Err(match source.kind() {
                    // Somebody may have published the step since the check.
                    _ if taken => SaveError::StepExists { path },
                    io::ErrorKind::Unsupported if replace => SaveError::CantReplace { path },
                    _ => SaveError::Io {
                        action: "publish",
                        path,
                        source,
                    },
                });
            }
        };
        self.kept = true;
        // Left there after a kill, the marker does no harm: no reader looks at it.
        let files = store.files_of(&step, dir);
        if !store.renames() {
            // Nor do claims, but they are of no use any more.
            for rank in 0..self.meta.world_size {
                let _ = store.remove_file(&join(&files, &claim_file_name(rank)));
            }
        }
        let _ = store.remove_file(&join(&files, MARKER_FILE));
        if let Some(dir) = replaced
            && let Err(error) = remove_replaced(&**store, &dir, self.meta.step)
        {
            tracing::warn!(
                dir = %store.place(&dir).display(), %error,
                "the replaced checkpoint could not be removed; `clean` removes it"
            );
        }
        Ok(place)
    }

    /// The manifest of all parts; writes the Hugging Face index on the way, whose digest it holds.
    fn manifest(&self, parts: Vec<Part>) -> Result<Manifest, SaveError> {
        let AttemptHandle {
            store, dir, marker, ..
        } = &self.handle;
        let mut listed = merge(parts)?;
        listed.plan.clone_from(&self.plan);
        self.handle.check_written(&listed.files)?;
        if let Some(parameters) = in_one_chunk(&listed.tensors) {
            let index = encode_index(parameters)?;
            listed.index = Some(write_document(&**store, &join(dir, INDEX_FILE), &index)?);
        }
        Manifest::new(marker.attempt, &self.meta, marker.block_bytes, listed)
            .map_err(SaveError::Meta)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let AttemptHandle {
            store, dir, marker, ..
        } = &self.handle;
        if let Err(error) = remove_attempt(&**store, marker) {
            tracing::warn!(
                dir = %store.place(dir).display(), %error,
                "an abandoned attempt is left, for `clean` when this process has ended"
            );
        }
    }
}

/// Name, file and bytes of each parameter; `None` when there is none, or one in several chunks, since the index has no
/// form for a part of a tensor.
fn in_one_chunk(tensors: &[TensorEntry]) -> Option<Vec<(&str, &str, u64)>> {
    let parameters = tensors.iter().filter(|tensor| tensor.role == Role::Model);
    let parameters = parameters.map(|tensor| match &tensor.chunks[..] {
        [chunk] => Some((&*tensor.name, &*chunk.file, chunk.len_bytes)),
        _ => None,
    });
    let parameters: Option<Vec<_>> = parameters.collect();
    parameters.filter(|parameters| !parameters.is_empty())
}

/// Writes a small file, and describes it.
fn write_document(store: &dyn Store, path: &str, bytes: &[u8]) -> Result<DocumentEntry, SaveError> {
    store
        .put(path, bytes)
        .map_err(failed(store, "write", path))?;
    Ok(DocumentEntry {
        size_bytes: bytes.len() as u64,
        digest: Digest::of(bytes),
    })
}

fn is_taken(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty};
    matches!(error.kind(), AlreadyExists | DirectoryNotEmpty)
}

fn refuse_existing(store: &dyn Store, step_dir: &str) -> Result<(), SaveError> {
    match is_there(store, step_dir)? {
        true => Err(SaveError::StepExists {
            path: store.place(step_dir),
        }),
        false => Ok(()),
    }
}

fn is_there(store: &dyn Store, path: &str) -> Result<bool, SaveError> {
    let found = existing(store.look(path)).map_err(failed(store, "look at", path))?;
    Ok(found.is_some())
}

/// Turns an I/O error into ours.
pub(super) fn failed<'a>(
    store: &'a dyn Store,
    action: &'static str,
    path: &'a str,
) -> impl FnOnce(io::Error) -> SaveError + 'a {
    move |source| SaveError::Io {
        action,
        path: store.place(path),
        source,
    }
}
