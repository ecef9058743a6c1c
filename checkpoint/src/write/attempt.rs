//! An attempt to save a step.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use super::{
    AttemptHandle, CheckpointMeta,
    clean::{remove_attempt, remove_replaced},
    merge::merge,
};
use crate::{
    AttemptId, Digest, Role, SaveError, TensorEntry,
    format::{
        DocumentEntry, INDEX_FILE, Json, MANIFEST_FILE, MARKER_FILE, MAX_MANIFEST_BYTES, Manifest,
        Marker, PLAN_FILE, Part, StoredPlan, attempt_dir_name, claim_file_name, encode_index,
        encode_manifest, metadata, part_file_name, step_dir_name, texts,
    },
    store::{FoundKind, Lock, PublishError, Store, existing, is_link, join},
};

/// An attempt to save a step, owned by the coordinator: rank 0, or the process that starts the ranks.
///
/// If it is dropped before publication, it removes its directory and all contents.
#[derive(Debug)]
pub struct Attempt {
    handle: AttemptHandle,
    meta: CheckpointMeta,
    plan: Option<DocumentEntry>,
    /// Whether its directory is, or may be, the directory of a checkpoint.
    kept: bool,
    // The lock identifies the attempt as alive, also after a kill.
    _lock: Lock,
}

impl Attempt {
    pub(crate) fn begin(store: Arc<dyn Store>, meta: CheckpointMeta) -> Result<Self, SaveError> {
        meta.check()?;
        let block_size = meta.size.unwrap_or_default().block_size(&meta)?;
        let plan = match &meta.plan {
            serde_json::Value::Null => None,
            plan => Some(Json::of(plan, MAX_MANIFEST_BYTES)?),
        };
        refuse_existing(&*store, &step_dir_name(meta.step), meta.replace)?;
        store.create_root().map_err(store.failed("create", ""))?;
        let marker = Marker {
            world_size: meta.world_size,
            block_bytes: block_size,
            file_bytes: meta.file_bytes,
            ..Marker::new(AttemptId::fresh(), meta.step)
        };
        let dir = attempt_dir_name(meta.step, marker.attempt);
        let created = store.create_dir(&dir);
        created.map_err(store.failed("create", &dir))?;
        let bytes = marker.encode()?;
        let path = join(&dir, MARKER_FILE);
        // Durable before any other file of the attempt, so that the remains of a power failure include the
        // marker.
        let written = (|| {
            let lock = store.create_locked(&path, &bytes);
            let lock = lock.and_then(|lock| store.sync_dir(&dir).map(|()| lock));
            let lock = lock.map_err(store.failed("create", &path))?;
            let path = join(&dir, PLAN_FILE);
            let plan = plan.map(|plan| write_document(&*store, &path, plan.text().as_bytes()));
            Ok((lock, plan.transpose()?))
        })();
        let (lock, plan) = written.inspect_err(|_: &SaveError| {
            // Reports the first error.
            let _ = remove_attempt(&*store, &marker);
        })?;
        Ok(Self {
            handle: AttemptHandle::new(store, marker),
            meta,
            plan,
            kept: false,
            _lock: lock,
        })
    }

    /// Returns the handle that a rank needs to write its part.
    pub fn handle(&self) -> AttemptHandle {
        self.handle.clone()
    }

    /// Returns the store and the directory for files that do not belong to a rank.
    pub(crate) fn place_to_write(&self) -> (&dyn Store, &str) {
        (&*self.handle.store, &self.handle.dir)
    }

    /// Waits until every rank has written its part of this attempt, validates that the parts form a complete
    /// checkpoint, and publishes it; returns the directory. Waits as long as files of the attempt appear or
    /// grow within each `timeout`; in a bucket a file appears when it is complete.
    ///
    /// # Errors
    ///
    /// Returns an error if parts are missing and no file has changed between two checks, one `timeout` apart
    /// (the missing ranks are named); if a rank has failed, or its part belongs to another attempt or
    /// conflicts with the others; if the step already exists; or if an I/O operation fails. Nothing is
    /// published then, except in the case of [`SaveError::NotDurable`], and possibly if a bucket did not
    /// respond: the error then reports that the outcome is unknown, and the files stay.
    pub fn publish(self, timeout: Duration) -> Result<PathBuf, SaveError> {
        let parts = self.handle.wait_for_parts(timeout)?;
        let ranks: Vec<u32> = parts.iter().map(|part| part.rank).collect();
        let bytes = encode_manifest(&self.manifest(parts)?)?;
        let AttemptHandle { store, dir, .. } = &self.handle;
        for rank in ranks {
            let part = join(dir, &part_file_name(rank));
            // If it is missing, a repeated request found it already removed by the first.
            existing(store.remove_file(&part)).map_err(store.failed("remove", &part))?;
        }
        self.publish_manifest(&bytes)
    }

    /// Publishes the files of the attempt, which are complete and durable, with the bytes of a manifest that has its id.
    ///
    /// # Errors
    ///
    /// See [`publish`](Self::publish).
    pub(crate) fn publish_manifest(mut self, bytes: &[u8]) -> Result<PathBuf, SaveError> {
        let AttemptHandle { store, dir, .. } = &self.handle;
        let step = step_dir_name(self.meta.step);
        let replace = self.meta.replace && is_replaceable(&**store, &step)?;
        let place = store.place(&step);
        let published = store.publish(dir, &step, bytes, replace);
        self.kept = !matches!(published, Err(PublishError::Unpublished { .. }));
        let replaced = published.map_err(|error| match error {
            PublishError::NotDurable { source } => SaveError::NotDurable {
                path: place.clone(),
                source,
            },
            PublishError::Unknown { source } => {
                store.failed("determine whether the store has published", &step)(source).into()
            }
            PublishError::Unpublished { path, source } => match source.kind() {
                // Another attempt may have published the step since the check.
                io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty if path == step => {
                    let path = place.clone();
                    SaveError::StepExists { path }
                }
                io::ErrorKind::Unsupported if replace => SaveError::CantReplace {
                    path: store.place(&path),
                },
                _ => store.failed("publish", &path)(source).into(),
            },
        })?;
        // If a kill leaves the marker there, it is harmless: no reader uses it.
        let files = store.files_of(&step, dir);
        if !store.renames() {
            // Claims are harmless too, but no longer needed.
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
        tracing::info!(step = self.meta.step, dir = %place.display(), "published a checkpoint");
        Ok(place)
    }

    /// Creates the manifest of all parts; writes the Hugging Face index first, because the manifest contains
    /// its digest.
    fn manifest(&self, parts: Vec<Part>) -> Result<Manifest, SaveError> {
        let (meta, marker) = (&self.meta, &self.handle.marker);
        let plan = self.plan.clone();
        let mut manifest = Manifest {
            seed: meta.seed,
            data_position: meta.data_position,
            metadata: metadata(&meta.metadata)?,
            modules: meta.modules.to_json()?,
            settings: texts::to_json(&meta.settings)?,
            numerics: texts::to_json(&meta.numerics)?,
            unknown: meta.unknown_fields.clone(),
            plan: plan.map_or(StoredPlan::None(()), StoredPlan::File),
            ..Manifest::empty(
                marker.attempt,
                meta.step,
                meta.world_size,
                marker.block_bytes,
            )
        };
        merge(parts, &mut manifest)?;
        self.handle.check_written(&manifest.files)?;
        if let Some(parameters) = in_one_chunk(&manifest.tensors) {
            let index = encode_index(parameters)?;
            let (store, dir) = self.place_to_write();
            manifest.index = Some(write_document(store, &join(dir, INDEX_FILE), &index)?);
        }
        Ok(manifest)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let (store, dir) = self.place_to_write();
        if let Err(error) = remove_attempt(store, &self.handle.marker) {
            tracing::warn!(
                dir = %store.place(dir).display(), %error,
                "an abandoned attempt could not be removed; `clean` removes it after this process has ended"
            );
        }
    }
}

/// Returns name, file and size of each parameter; `None` if there are none, or one has several chunks,
/// because the index can't represent a part of a tensor.
fn in_one_chunk(tensors: &[TensorEntry]) -> Option<Vec<(&str, &str, u64)>> {
    let parameters = tensors.iter().filter(|tensor| tensor.role == Role::Model);
    let parameters = parameters.map(|tensor| match &tensor.chunks[..] {
        [chunk] => Some((&*tensor.name, &*chunk.file, chunk.len_bytes)),
        _ => None,
    });
    let parameters: Option<Vec<_>> = parameters.collect();
    parameters.filter(|parameters| !parameters.is_empty())
}

/// Writes a small file and returns its size and digest.
fn write_document(store: &dyn Store, path: &str, bytes: &[u8]) -> Result<DocumentEntry, SaveError> {
    store.write(path, bytes)?;
    Ok(DocumentEntry {
        size_bytes: bytes.len() as u64,
        digest: Digest::of(bytes),
    })
}

/// Rejects a step that can't be published, before anything is written.
fn refuse_existing(store: &dyn Store, step_dir: &str, replace: bool) -> Result<(), SaveError> {
    // Without renames, the remains of a removed step do not block its name.
    let taken = match store.renames() {
        true => step_dir.to_owned(),
        false if replace => return Ok(()),
        false => join(step_dir, MANIFEST_FILE),
    };
    let path = store.place(&taken);
    match store.find(&taken)?.map(|found| found.kind) {
        Some(FoundKind::File | FoundKind::Other) if store.renames() => {
            Err(SaveError::NotADirectory { path })
        }
        Some(_) if !replace => Err(SaveError::StepExists { path }),
        _ => Ok(()),
    }
}

/// Returns whether a step is a checkpoint, which may be damaged, or a link, whose target is not changed by a replacement.
fn is_replaceable(store: &dyn Store, step_dir: &str) -> Result<bool, SaveError> {
    if store.find(&join(step_dir, MANIFEST_FILE))?.is_some() {
        return Ok(true);
    }
    let link = existing(is_link(store, step_dir));
    Ok(link.map_err(store.failed("look at", step_dir))? == Some(true))
}
