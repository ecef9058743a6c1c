//! Implementation of store operations as requests to a bucket.

use std::{io, path::PathBuf, pin::Pin, sync::Arc};

use object_store::path::Path;
use object_store::{
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, Result, UpdateVersion,
};

use super::bucket::BucketStore;
use super::error::to_io;
use super::file::{BucketRead, BucketWrite};
use super::requests::{PutError, get};
use crate::Manifest;
use crate::format::{MANIFEST_FILE, MAX_MANIFEST_BYTES, names};
use crate::store::{
    Found, FoundKind, Lock, Publication, PublishError, ReadFile, Store, WriteFile, existing, join,
};

impl BucketStore {
    /// Reads an object with one request; returns its version, and its bytes unless they exceed a limit.
    fn get(&self, at: Path, limit_bytes: u64) -> io::Result<(UpdateVersion, Option<Vec<u8>>)> {
        let objects = self.objects.clone();
        self.run(async move { get(&*objects, &at, limit_bytes).await })
    }

    /// Returns the condition that the manifest of a step is unchanged, and the location of the files that it lists, unless the
    /// files are next to the manifest.
    fn now_at(&self, step: &str, at: &Path) -> io::Result<(PutMode, Option<String>)> {
        let (version, bytes) = self.get(at.clone(), MAX_MANIFEST_BYTES)?;
        if version.e_tag.is_none() && version.version.is_none() {
            // The condition needs an existing manifest.
            return Err(io::ErrorKind::Unsupported.into());
        }
        let manifest = bytes.and_then(|bytes| Manifest::from_bytes(&bytes).ok());
        // A copy of another step's manifest lists files that do not belong to this step.
        let manifest = manifest.filter(|manifest| names::step_dir(manifest.step) == step);
        let files = manifest.map(|manifest| {
            let attempt = names::attempt_dir(manifest.step, manifest.attempt);
            self.files_of(step, &attempt)
        });
        if files.as_deref() == Some(step) {
            tracing::warn!(
                step = %self.place(step).display(),
                "the files of the replaced checkpoint are next to its manifest and are not removed"
            );
        }
        let files = files.filter(|files| files != step);
        Ok((PutMode::Update(version), files))
    }
}

impl Store for BucketStore {
    fn place(&self, path: &str) -> PathBuf {
        PathBuf::from(join(&self.place, path))
    }

    fn list(&self, dir: &str) -> io::Result<Vec<Found>> {
        let (objects, at) = (self.objects.clone(), self.at(dir)?);
        let listing = self.run(async move { objects.list_with_delimiter(Some(&at)).await })?;
        let dirs = listing.common_prefixes.iter().map(directory);
        let all: Vec<Found> = dirs.chain(listing.objects.iter().map(file)).collect();
        match all.is_empty() && !dir.is_empty() {
            true => Err(io::ErrorKind::NotFound.into()),
            false => Ok(all),
        }
    }

    fn look(&self, path: &str) -> io::Result<Found> {
        let at = self.at(path)?;
        if !path.is_empty()
            && let Some(meta) = existing(self.head(&at))?
        {
            return Ok(file(&meta));
        }
        // A directory exists if it has objects.
        self.list(path).map(|_| directory(&at))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadFile>> {
        let at = self.at(path)?;
        let meta = self.head(&at)?;
        Ok(Box::new(BucketRead::new(self.clone(), at, meta)))
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn WriteFile>> {
        Ok(Box::new(BucketWrite::new(self.clone(), self.at(path)?)))
    }

    /// Reads the object with one request.
    fn read_small(&self, path: &str, limit_bytes: u64) -> io::Result<Vec<u8>> {
        let (_, bytes) = self.get(self.at(path)?, limit_bytes)?;
        bytes.ok_or(io::ErrorKind::FileTooLarge.into())
    }

    fn create_dir(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        let (objects, at) = (self.objects.clone(), self.at(path)?);
        self.run(async move { delete(&objects, &at).await })
    }

    fn remove_dir(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn create_locked(&self, path: &str, bytes: &[u8]) -> io::Result<Lock> {
        let at = self.at(path)?;
        let payload = PutPayload::from(bytes.to_vec());
        self.put_if(&at, payload, PutMode::Create)?;
        // A service that ignores conditions accepts the same write again.
        let other = PutPayload::from_static(b"this write must fail");
        match self.put_if(&at, other, PutMode::Create) {
            Err(PutError::NotWritten(_)) => Ok(Lock::of(())),
            Err(error) => Err(error.into()),
            Ok(()) => {
                self.remove_file(path)?;
                let reason = "the service ignores the condition of a write (If-None-Match)";
                Err(io::Error::new(io::ErrorKind::Unsupported, reason))
            }
        }
    }

    fn has_locks(&self) -> bool {
        false
    }

    fn try_lock(&self, _path: &str) -> io::Result<Option<Lock>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn renames(&self) -> bool {
        false
    }

    fn put(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let (objects, at) = (self.objects.clone(), self.at(path)?);
        let payload = PutPayload::from(bytes.to_vec());
        self.run(async move {
            let put = objects.put_opts(&at, payload, PutOptions::default());
            put.await.map(drop)
        })
    }

    fn publish(
        &self,
        attempt: &str,
        step: &str,
        manifest: &[u8],
        publication: Publication,
    ) -> std::result::Result<Option<String>, PublishError> {
        let at = PublishError::at;
        let copy = join(attempt, MANIFEST_FILE);
        self.put(&copy, manifest).map_err(at(&copy))?;
        let target = self.at(&join(step, MANIFEST_FILE)).map_err(at(step))?;
        let (mode, replaced) = match publication {
            Publication::New => (PutMode::Create, None),
            Publication::Replacement => self.now_at(step, &target).map_err(at(step))?,
        };
        let payload = PutPayload::from(manifest.to_vec());
        match self.put_if(&target, payload, mode) {
            // An attempt is published at most once, and not removed meanwhile.
            Ok(()) => Ok(replaced.filter(|files| files != attempt)),
            Err(PutError::Unknown(source)) => Err(PublishError::Unknown {
                source: to_io(source),
            }),
            Err(error) => Err(at(step)(io::Error::from(error))),
        }
    }

    fn retire(&self, step: &str, _trash: &str) -> io::Result<()> {
        // It existed before: if it is missing now, a repeated request found it already removed by the first.
        existing(self.remove_file(&join(step, MANIFEST_FILE))).map(drop)
    }

    /// Returns the directory of the attempt, which contains the copy of the manifest, or for an uploaded directory the
    /// directory of the step. Sends one request.
    fn files_of(&self, step: &str, attempt: &str) -> String {
        let copy = self.at(&join(attempt, MANIFEST_FILE));
        match existing(copy.and_then(|copy| self.head(&copy))) {
            Ok(None) => step.to_owned(),
            _ => attempt.to_owned(),
        }
    }
}

/// Removes an object. Boxed, so that the compiler does not have to prove that the future is `Send` from its
/// contents.
fn delete<'a>(
    objects: &'a Arc<dyn ObjectStore>,
    at: &'a Path,
) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>> {
    Box::pin(objects.delete(at))
}

fn directory(at: &Path) -> Found {
    Found {
        name: at.filename().unwrap_or_default().to_owned(),
        kind: FoundKind::Dir,
        bytes: 0,
        modified: None,
    }
}

fn file(meta: &ObjectMeta) -> Found {
    Found {
        kind: FoundKind::File,
        bytes: meta.size,
        modified: Some(meta.last_modified.into()),
        ..directory(&meta.location)
    }
}
