//! An attempt to save a step.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use super::{
    AttemptHandle, CheckpointMeta,
    clean::{remove_as, remove_replaced},
    merge::merge,
};
use crate::{
    Digest, SaveError,
    format::{
        DocumentEntry, INDEX_FILE, Json, MANIFEST_FILE, MARKER_FILE, MAX_MANIFEST_BYTES, Manifest,
        Marker, PLAN_FILE, StoredPlan, attempt_dir_name, claim_file_name, encode_index,
        encode_manifest, part_file_name, step_dir_name,
    },
    store::{FoundKind, Lock, PublishError, Store, existing, is_link, join},
};

/// An attempt to save a step, owned by the coordinator: rank 0, or the process that starts the ranks.
///
/// If it is dropped before publication, it removes its directory and all contents.
#[derive(Debug)]
pub struct Attempt {
    handle: AttemptHandle,
    /// The manifest, without what the ranks write.
    manifest: Manifest,
    /// Whether an existing checkpoint of the step is replaced.
    replace: bool,
    /// Whether its directory is, or may be, the directory of a checkpoint.
    kept: bool,
    /// The lock identifies the attempt as alive, also after a kill.
    _lock: Option<Lock>,
}

impl Attempt {
    pub(crate) fn begin(store: Arc<dyn Store>, meta: CheckpointMeta) -> Result<Self, SaveError> {
        let manifest = meta.manifest()?;
        let plan = match &meta.plan {
            serde_json::Value::Null => None,
            plan => Some(Json::of(plan, MAX_MANIFEST_BYTES)?),
        };
        refuse_existing(&*store, &step_dir_name(meta.step), meta.replace)?;
        store.create_root().map_err(store.failed("create", ""))?;
        let marker = Marker {
            world_size: meta.world_size,
            block_bytes: manifest.block_bytes,
            file_bytes: meta.file_bytes,
            ..Marker::new(manifest.attempt, meta.step)
        };
        let dir = attempt_dir_name(meta.step, marker.attempt);
        let created = store.create_dir(&dir);
        created.map_err(store.failed("create", &dir))?;
        let bytes = marker.encode()?;
        let path = join(&dir, MARKER_FILE);
        // After an error, dropping it removes the directory.
        let mut attempt = Self {
            handle: AttemptHandle::new(store.clone(), marker),
            manifest,
            replace: meta.replace,
            kept: false,
            _lock: None,
        };
        // Durable before any other file of the attempt, so that the remains of a power failure include the
        // marker.
        let lock = store.create_locked(&path, &bytes);
        let lock = lock.and_then(|lock| store.sync_dir(&dir).map(|()| lock));
        attempt._lock = Some(lock.map_err(store.failed("create", &path))?);
        if let Some(plan) = plan {
            let path = join(&dir, PLAN_FILE);
            let entry = write_document(&*store, &path, plan.text().as_bytes())?;
            attempt.manifest.plan = Some(StoredPlan::File(entry));
        }
        Ok(attempt)
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
    pub fn publish(mut self, timeout: Duration) -> Result<PathBuf, SaveError> {
        merge(self.handle.wait_for_parts(timeout)?, &mut self.manifest)?;
        self.handle.check_written(&self.manifest.files)?;
        // Before the manifest is complete, because it contains the digest of the index.
        self.manifest.index = self.write_index()?;
        let bytes = encode_manifest(&self.manifest)?;
        let AttemptHandle { store, dir, .. } = &self.handle;
        for rank in 0..self.handle.world_size() {
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
        let step_number = self.handle.step();
        let step = step_dir_name(step_number);
        let replace = self.replace && is_replaceable(&**store, &step)?;
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
            for rank in 0..self.handle.world_size() {
                let _ = store.remove_file(&join(&files, &claim_file_name(rank)));
            }
        }
        let _ = store.remove_file(&join(&files, MARKER_FILE));
        if let Some(dir) = replaced
            && let Err(error) = remove_replaced(&**store, &dir, step_number)
        {
            tracing::warn!(
                dir = %store.place(&dir).display(), %error,
                "the replaced checkpoint could not be removed; `clean` removes it"
            );
        }
        tracing::info!(step = step_number, dir = %place.display(), "published a checkpoint");
        Ok(place)
    }

    /// Writes the Hugging Face index, if that form can describe the parameters.
    fn write_index(&self) -> Result<Option<DocumentEntry>, SaveError> {
        if !self.manifest.is_indexable() {
            return Ok(None);
        }
        let parameters = self.manifest.parameters();
        let index = encode_index(parameters.map(|tensor| {
            let file = &*tensor.chunks[0].file;
            (&*tensor.name, file, tensor.bytes())
        }))?;
        let (store, dir) = self.place_to_write();
        write_document(store, &join(dir, INDEX_FILE), &index).map(Some)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let (store, dir) = self.place_to_write();
        if let Err(error) = remove_as(store, dir, self.handle.step(), self.handle.attempt()) {
            tracing::warn!(
                dir = %store.place(dir).display(), %error,
                "an abandoned attempt could not be removed; `clean` removes it after this process has ended"
            );
        }
    }
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
