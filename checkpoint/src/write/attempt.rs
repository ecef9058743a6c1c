//! An attempt to save a step: begins, waits for the parts of the ranks, and publishes.

use std::io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, Unsupported};
use std::{path::PathBuf, time::Duration};

use super::clean::{remove_as, remove_replaced};
use super::merge::merge;
use super::{AttemptHandle, CheckpointMeta};
use crate::format::{
    DocumentEntry, INDEX_FILE, Json, MANIFEST_FILE, MARKER_FILE, MAX_MANIFEST_BYTES, Manifest,
    Marker, PLAN_FILE, StoredPlan, encode_index, encode_manifest, names,
};
use crate::store::{Files, FoundKind, Lock, Publication, PublishError, StoreExt, existing, join};
use crate::{Digest, SaveError};

/// An attempt to save a step. The coordinator owns it: rank 0, or the process that starts the ranks.
///
/// If an attempt is dropped before its publication, it removes its directory with all contents.
#[derive(Debug)]
pub struct Attempt {
    handle: AttemptHandle,
    /// The manifest. The contents of the ranks are added when their parts are merged.
    manifest: Manifest,
    /// Whether an existing checkpoint of the step is replaced.
    replace: bool,
    /// Whether the attempt is published, or may be: then dropping it must not remove its files.
    may_be_published: bool,
    /// The lock of the marker, held while the attempt is alive. A kill releases it, so `clean` can identify the attempt as
    /// dead. `None` until the marker is created.
    _lock: Option<Lock>,
}

impl Attempt {
    /// Creates the directory of the attempt, with its marker and its plan.
    pub(crate) fn begin(store: Files, meta: CheckpointMeta) -> Result<Self, SaveError> {
        let manifest = meta.manifest()?;
        let plan = meta.plan.as_ref();
        let plan = plan.map(|plan| Json::of(plan, MAX_MANIFEST_BYTES));
        let plan = plan.transpose()?;
        refuse_existing(&store, &names::step_dir(meta.step), meta.replace)?;
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
        // Created before the marker, so that after an error below its drop removes the directory.
        let mut attempt = Self {
            handle: AttemptHandle::new(store.clone(), marker),
            manifest,
            replace: meta.replace,
            may_be_published: false,
            _lock: None,
        };
        // The marker is durable before any other file of the attempt exists. It identifies the directory after a power
        // failure, and only a directory that is identified is removed.
        let lock = store.create_locked(&path, &bytes);
        let lock = lock.and_then(|lock| store.sync_dir(&dir).map(|()| lock));
        attempt._lock = Some(lock.map_err(store.failed("create", &path))?);
        if let Some(plan) = plan {
            let path = join(&dir, PLAN_FILE);
            let entry = write_document(&store, &path, plan.text().as_bytes())?;
            attempt.manifest.plan = Some(StoredPlan::File(entry));
        }
        Ok(attempt)
    }

    /// Returns the handle with which a rank writes its part.
    pub fn handle(&self) -> AttemptHandle {
        self.handle.clone()
    }

    /// Returns the store and the directory for files that do not belong to a rank.
    pub(crate) fn place_to_write(&self) -> (&Files, &str) {
        (&self.handle.store, &self.handle.dir)
    }

    /// Waits until every rank has written its part, validates that the parts form a complete checkpoint, and publishes it.
    /// Returns the directory of the checkpoint.
    ///
    /// The wait continues as long as files of the attempt appear or grow within each `timeout`. In a bucket, a file appears
    /// only when it is complete. Copies from a device to the host are not visible as progress. A rank without progress is
    /// an error only when the other ranks have no progress either, for example because they have finished.
    ///
    /// # Errors
    ///
    /// Returns an error in these cases:
    ///
    /// - Parts are missing, and no file has changed between two checks, one `timeout` apart. The error names the missing
    ///   ranks.
    /// - A rank has failed, or its part belongs to another attempt or conflicts with another part.
    /// - The step already exists.
    /// - An I/O operation fails.
    ///
    /// After an error, nothing is published, with two exceptions. After [`SaveError::NotDurable`], the checkpoint is
    /// published, but a power failure may undo this. If a bucket did not respond, the error reports that the outcome is
    /// unknown, and the files stay.
    pub fn publish(mut self, timeout: Duration) -> Result<PathBuf, SaveError> {
        merge(self.handle.wait_for_parts(timeout)?, &mut self.manifest)?;
        self.handle.check_written(&self.manifest.files)?;
        // Written before the manifest is encoded, because the manifest contains the digest of the index.
        self.manifest.index = self.write_index()?;
        let bytes = encode_manifest(&self.manifest)?;
        let AttemptHandle { store, dir, .. } = &self.handle;
        for rank in 0..self.handle.world_size() {
            let part = join(dir, &names::part_file(rank));
            // A missing part is no error: the client of a bucket may repeat a request that has already removed it.
            existing(store.remove_file(&part)).map_err(store.failed("remove", &part))?;
        }
        self.publish_manifest(&bytes)
    }

    /// Publishes the files of the attempt with the bytes of a manifest. The files are complete and durable, and the
    /// manifest has the id of the attempt.
    ///
    /// # Errors
    ///
    /// See [`publish`](Self::publish).
    pub(crate) fn publish_manifest(mut self, bytes: &[u8]) -> Result<PathBuf, SaveError> {
        let AttemptHandle { store, dir, .. } = &self.handle;
        let step_number = self.handle.step();
        let step = names::step_dir(step_number);
        let publication = match self.replace && is_replaceable(store, &step)? {
            true => Publication::Replacement,
            false => Publication::New,
        };
        let (place, path) = (store.place(&step), store.place(&step));
        let published = store.publish(dir, &step, bytes, publication);
        self.may_be_published = !matches!(published, Err(PublishError::Unpublished { .. }));
        let replaced = published.map_err(|error| match error {
            PublishError::NotDurable { source } => SaveError::NotDurable { path, source },
            PublishError::Unknown { source } => {
                store.failed("determine whether the store has published", &step)(source).into()
            }
            PublishError::Unpublished { path: at, source } => match source.kind() {
                // Another attempt may have published the step since it was checked.
                AlreadyExists | DirectoryNotEmpty if at == step => SaveError::StepExists { path },
                Unsupported if publication == Publication::Replacement => SaveError::CantReplace {
                    path: store.place(&at),
                },
                _ => store.failed("publish", &at)(source).into(),
            },
        })?;
        // The checkpoint is published. The files of the save that remain are removed, but errors are ignored: no reader
        // uses these files.
        let files = store.files_of(&step, dir);
        if !store.renames() {
            // Ranks claim their place with a file only in a store without renames.
            for rank in 0..self.handle.world_size() {
                let _ = store.remove_file(&join(&files, &names::claim_file(rank)));
            }
        }
        let _ = store.remove_file(&join(&files, MARKER_FILE));
        if let Some(dir) = replaced
            && let Err(error) = remove_replaced(store, &dir, step_number)
        {
            tracing::warn!(
                dir = %store.place(&dir).display(), %error,
                "the replaced checkpoint could not be removed; `clean` removes it"
            );
        }
        tracing::info!(step = step_number, dir = %place.display(), "published a checkpoint");
        Ok(place)
    }

    /// Writes the index in the format of Hugging Face, if this format can describe the parameters.
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
        if self.may_be_published {
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
fn write_document(store: &Files, path: &str, bytes: &[u8]) -> Result<DocumentEntry, SaveError> {
    store.write(path, bytes)?;
    Ok(DocumentEntry {
        size_bytes: bytes.len() as u64,
        digest: Digest::of(bytes),
    })
}

/// Rejects a step that exists, or can't be replaced, before anything is written.
fn refuse_existing(store: &Files, step_dir: &str, replace: bool) -> Result<(), SaveError> {
    // With renames, any entry with the name of the step prevents the publication. Without renames, only a manifest does.
    let blocking = match store.renames() {
        true => step_dir.to_owned(),
        false if replace => return Ok(()),
        false => join(step_dir, MANIFEST_FILE),
    };
    let path = store.place(&blocking);
    match store.find(&blocking)?.map(|found| found.kind) {
        Some(FoundKind::File | FoundKind::Other) if store.renames() => {
            Err(SaveError::NotADirectory { path })
        }
        Some(_) if !replace => Err(SaveError::StepExists { path }),
        _ => Ok(()),
    }
}

/// Returns whether a step can be replaced: it has a manifest, which may be damaged, or it is a link. If it is a link, only
/// the link is replaced; its target is unchanged.
fn is_replaceable(store: &Files, step_dir: &str) -> Result<bool, SaveError> {
    if store.find(&join(step_dir, MANIFEST_FILE))?.is_some() {
        return Ok(true);
    }
    let target = existing(store.link_target(step_dir));
    let target = target.map_err(store.failed("look at", step_dir))?;
    Ok(target.flatten().is_some())
}
