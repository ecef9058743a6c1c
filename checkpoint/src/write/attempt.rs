//! An attempt to save a step.

use std::io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, Unsupported};
use std::{path::PathBuf, sync::Arc, time::Duration};

use super::clean::{remove_as, remove_replaced};
use super::merge::merge;
use super::{AttemptHandle, CheckpointMeta};
use crate::format::{
    DocumentEntry, INDEX_FILE, Json, MANIFEST_FILE, MARKER_FILE, MAX_MANIFEST_BYTES, Manifest,
    Marker, PLAN_FILE, StoredPlan, encode_index, encode_manifest, names,
};
use crate::store::{
    FoundKind, Lock, Publication, PublishError, Store, StoreExt, existing, is_link, join,
};
use crate::{Digest, SaveError};

/// An attempt to save a step, owned by the coordinator: rank 0, or the process that starts the ranks.
///
/// If it is dropped before publication, it removes its directory and all contents.
#[derive(Debug)]
pub struct Attempt {
    handle: AttemptHandle,
    /// The manifest, without the contents of the ranks.
    manifest: Manifest,
    /// Whether an existing checkpoint of the step is replaced.
    replace: bool,
    /// Whether the directory is, or may be, the directory of a checkpoint.
    kept: bool,
    /// The lock identifies the attempt as alive, also after a kill.
    _lock: Option<Lock>,
}

impl Attempt {
    pub(crate) fn begin(store: Arc<dyn Store>, meta: CheckpointMeta) -> Result<Self, SaveError> {
        let manifest = meta.manifest()?;
        let plan = meta.plan.as_ref();
        let plan = plan.map(|plan| Json::of(plan, MAX_MANIFEST_BYTES));
        let plan = plan.transpose()?;
        refuse_existing(&*store, &names::step_dir(meta.step), meta.replace)?;
        store.create_dir("").map_err(store.failed("create", ""))?;
        let marker = Marker {
            world_size: meta.world_size,
            block_bytes: manifest.block_bytes,
            file_bytes: meta.file_bytes,
            ..Marker::new(manifest.attempt, meta.step)
        };
        let dir = names::attempt_dir(meta.step, marker.attempt);
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
        // Durable before any other file of the attempt, so that the marker survives a power failure.
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

    /// Waits until every rank has written its part of this attempt, validates that the parts form a complete checkpoint, and
    /// publishes it; returns the directory. Waits as long as files of the attempt appear or grow within each `timeout`; in a
    /// bucket a file appears when it is complete. Copies from a device do not count as progress. If a rank makes no progress,
    /// the error names it after the other ranks have finished.
    ///
    /// # Errors
    ///
    /// Returns an error in these cases:
    ///
    /// - Parts are missing, and no file has changed between two checks, one `timeout` apart. The error names the missing ranks.
    /// - A rank has failed, or its part belongs to another attempt or conflicts with another part.
    /// - The step already exists.
    /// - An I/O operation fails.
    ///
    /// Nothing is published then, with two exceptions: [`SaveError::NotDurable`], and a bucket that did not respond. In this
    /// case the error reports that the outcome is unknown, and the files stay.
    pub fn publish(mut self, timeout: Duration) -> Result<PathBuf, SaveError> {
        merge(self.handle.wait_for_parts(timeout)?, &mut self.manifest)?;
        self.handle.check_written(&self.manifest.files)?;
        // Before the manifest is complete, because it contains the digest of the index.
        self.manifest.index = self.write_index()?;
        let bytes = encode_manifest(&self.manifest)?;
        let AttemptHandle { store, dir, .. } = &self.handle;
        for rank in 0..self.handle.world_size() {
            let part = join(dir, &names::part_file(rank));
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
        let step = names::step_dir(step_number);
        let publication = match self.replace && is_replaceable(&**store, &step)? {
            true => Publication::Replacement,
            false => Publication::New,
        };
        let (place, path) = (store.place(&step), store.place(&step));
        let published = store.publish(dir, &step, bytes, publication);
        self.kept = !matches!(published, Err(PublishError::Unpublished { .. }));
        let replaced = published.map_err(|error| match error {
            PublishError::NotDurable { source } => SaveError::NotDurable { path, source },
            PublishError::Unknown { source } => {
                store.failed("determine whether the store has published", &step)(source).into()
            }
            PublishError::Unpublished { path: at, source } => match source.kind() {
                // Another attempt may have published the step since the check.
                AlreadyExists | DirectoryNotEmpty if at == step => SaveError::StepExists { path },
                Unsupported if publication == Publication::Replacement => SaveError::CantReplace {
                    path: store.place(&at),
                },
                _ => store.failed("publish", &at)(source).into(),
            },
        })?;
        // A marker that a kill leaves there is harmless: no reader uses it.
        let files = store.files_of(&step, dir);
        if !store.renames() {
            // Claims are harmless as well.
            for rank in 0..self.handle.world_size() {
                let _ = store.remove_file(&join(&files, &names::claim_file(rank)));
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
    // Without renames, only a manifest blocks the name of a step.
    let existing = match store.renames() {
        true => step_dir.to_owned(),
        false if replace => return Ok(()),
        false => join(step_dir, MANIFEST_FILE),
    };
    let path = store.place(&existing);
    match store.find(&existing)?.map(|found| found.kind) {
        Some(FoundKind::File | FoundKind::Other) if store.renames() => {
            Err(SaveError::NotADirectory { path })
        }
        Some(_) if !replace => Err(SaveError::StepExists { path }),
        _ => Ok(()),
    }
}

/// Returns whether a step is a checkpoint, which may be damaged, or a link. A replacement does not change the target of a link.
fn is_replaceable(store: &dyn Store, step_dir: &str) -> Result<bool, SaveError> {
    if store.find(&join(step_dir, MANIFEST_FILE))?.is_some() {
        return Ok(true);
    }
    let link = existing(is_link(store, step_dir));
    Ok(link.map_err(store.failed("look at", step_dir))? == Some(true))
}
