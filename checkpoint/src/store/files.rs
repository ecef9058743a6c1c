//! How this crate accesses a store: reads are retried after temporary failures, and errors name the operation and the path.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};

use super::{Found, FoundKind, ReadFile, Store, WriteFile, existing, join};
use crate::error::{ErrorClass, class_of_io};
use crate::format::{MANIFEST_FILE, MAX_MANIFEST_BYTES};
use crate::{FormatError, Manifest, StoreError};

/// The pause before each retry, in milliseconds. A read is tried once more than there are pauses.
const PAUSES_MS: [u64; 3] = [20, 200, 1000];

/// After this time, a failed read is not retried. A read that took so long has already waited or retried below this crate,
/// for example in the client of a network file system.
const NO_RETRY_AFTER: Duration = Duration::from_secs(10);

/// Retries a read until it succeeds, fails permanently, or the retries are exhausted.
fn with_retries<T>(place: &Path, mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let started = Instant::now();
    for pause_ms in PAUSES_MS {
        match read() {
            Err(error) if is_temporary(&error) && started.elapsed() < NO_RETRY_AFTER => {
                tracing::warn!(place = %place.display(), %error, "a read failed and is retried");
                thread::sleep(Duration::from_millis(pause_ms));
            }
            done => return done,
        }
    }
    read()
}

/// Returns whether the same read may succeed later.
fn is_temporary(error: &io::Error) -> bool {
    // An error that wraps another error comes from the client of a bucket, which has retried by itself. A stale handle
    // stays stale, because the file must be opened again.
    error.get_ref().is_none()
        && error.kind() != io::ErrorKind::StaleNetworkFileHandle
        && class_of_io(error) == ErrorClass::Transient
}

/// Errors of any store with their operation and path.
pub(crate) trait StoreExt: Store {
    /// Returns a function that adds the operation and the path to an error. `action` completes "can't ...".
    fn failed(&self, action: &'static str, path: &str) -> impl FnOnce(io::Error) -> StoreError {
        move |source| StoreError {
            action,
            path: self.place(path),
            source,
        }
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

/// A store with retries. All reads are methods of this type, and are retried. For all other operations this type
/// dereferences to the store itself. They are not retried: a write whose response was lost may have succeeded.
#[derive(Clone, Debug, derive_more::Deref)]
#[deref(forward)]
pub(crate) struct Files(pub(crate) Arc<dyn Store>);

impl Files {
    /// [`Store::list`], with retries.
    pub(crate) fn list(&self, dir: &str) -> io::Result<Vec<Found>> {
        with_retries(&self.place(dir), || self.0.list(dir))
    }

    /// [`Store::look`], with retries.
    pub(crate) fn look(&self, path: &str) -> io::Result<Found> {
        with_retries(&self.place(path), || self.0.look(path))
    }

    /// [`Store::link_target`], with retries.
    pub(crate) fn link_target(&self, path: &str) -> io::Result<Option<PathBuf>> {
        with_retries(&self.place(path), || self.0.link_target(path))
    }

    /// [`Store::open`], with retries. Reads of the file are retried too.
    pub(crate) fn open(&self, path: &str) -> io::Result<Box<dyn ReadFile>> {
        let place = self.place(path);
        let file = with_retries(&place, || self.0.open(path))?;
        Ok(Box::new(RetryingFile { file, place }))
    }

    /// [`Store::read_small`], with retries.
    pub(crate) fn read_small(&self, path: &str, limit_bytes: u64) -> io::Result<Vec<u8>> {
        with_retries(&self.place(path), || self.0.read_small(path, limit_bytes))
    }

    /// Looks up an entry; returns `None` if it does not exist.
    pub(crate) fn find(&self, path: &str) -> Result<Option<Found>, StoreError> {
        existing(self.look(path)).map_err(self.failed("look at", path))
    }

    /// Lists a directory; a directory that does not exist has no entries.
    pub(crate) fn entries(&self, dir: &str) -> Result<Vec<Found>, StoreError> {
        let listing = existing(self.list(dir)).map_err(self.failed("list", dir))?;
        Ok(listing.unwrap_or_default())
    }

    /// Returns the entries of a directory, each with the bytes of its files at any depth. A link, a file, and a directory that
    /// does not exist have no entries.
    pub(crate) fn sizes_in(&self, dir: &str) -> Result<BTreeMap<String, u64>, StoreError> {
        let entries = match self.find(dir)?.map(|found| found.kind) {
            Some(FoundKind::Dir) => self.entries(dir)?,
            _ => Vec::new(),
        };
        let sizes = entries.into_iter().map(|found| {
            let bytes = match found.kind {
                FoundKind::File => found.bytes,
                _ => self.bytes_in(&join(dir, &found.name))?,
            };
            Ok((found.name, bytes))
        });
        sizes.collect()
    }

    /// Returns the bytes of the files in a directory, at any depth. Links are not followed.
    pub(crate) fn bytes_in(&self, dir: &str) -> Result<u64, StoreError> {
        Ok(self.sizes_in(dir)?.values().sum())
    }

    /// Lists a directory; returns the entries by name. A directory that does not exist is an error.
    pub(crate) fn entries_by_name(&self, dir: &str) -> Result<HashMap<String, Found>, StoreError> {
        let listing = self.list(dir).map_err(self.failed("list", dir))?;
        let named = listing.into_iter().map(|found| (found.name.clone(), found));
        Ok(named.collect())
    }

    /// Creates a new file, to be written.
    pub(crate) fn begin(&self, path: String) -> Result<NewFile<'_>, StoreError> {
        let file = self.create(&path).map_err(self.failed("create", &path))?;
        let store = self;
        Ok(NewFile { store, path, file })
    }

    /// Writes a small file atomically.
    pub(crate) fn write(&self, path: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.put(path, bytes).map_err(self.failed("write", path))
    }

    /// Reads the manifest of a directory; returns `None` if the directory has no manifest. An I/O error is the outer error,
    /// a damaged manifest the inner one.
    pub(crate) fn read_manifest(
        &self,
        dir: &str,
    ) -> io::Result<Option<Result<Manifest, FormatError>>> {
        let bytes = existing(self.read_small(&join(dir, MANIFEST_FILE), MAX_MANIFEST_BYTES))?;
        Ok(bytes.map(|bytes| Manifest::from_bytes(&bytes)))
    }

    /// Removes a directory and its contents. The file `last` identifies the directory, so it is removed when the removal of
    /// all other files is durable: after a kill or a power failure, the rest can still be identified and removed. Links are
    /// not followed. Another process may remove entries at the same time.
    pub(crate) fn remove_tree(&self, dir: &str, last: &str) -> io::Result<()> {
        let ignore_missing = |result: io::Result<()>| existing(result).map(drop);
        match existing(self.look(dir))?.map(|found| found.kind) {
            Some(FoundKind::Dir) => {}
            // A link, for example: its target does not belong to this crate.
            Some(_) => return ignore_missing(self.remove_file(dir)),
            None => return Ok(()),
        }
        let mut found = existing(self.list(dir))?.unwrap_or_default();
        found.sort_by_key(|entry| entry.name == last);
        for entry in found {
            if entry.name == last {
                ignore_missing(self.sync_dir(dir))?;
            }
            let path = join(dir, &entry.name);
            match entry.kind {
                FoundKind::Dir => self.remove_tree(&path, "")?,
                FoundKind::File | FoundKind::Link | FoundKind::Other => {
                    ignore_missing(self.remove_file(&path))?;
                }
            }
        }
        ignore_missing(self.remove_dir(dir))
    }

    /// Makes the entries of a directory durable.
    pub(crate) fn sync(&self, dir: &str) -> Result<(), StoreError> {
        self.sync_dir(dir).map_err(self.failed("sync", dir))
    }
}

/// A file that is being written, with its path for errors.
pub(crate) struct NewFile<'a> {
    store: &'a Files,
    path: String,
    file: Box<dyn WriteFile>,
}

impl NewFile<'_> {
    /// Appends bytes.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let written = self.file.write_all(bytes);
        written.map_err(self.store.failed("write", &self.path))
    }

    /// Makes all written bytes durable.
    pub(crate) fn finish(self) -> Result<(), StoreError> {
        let finished = self.file.finish();
        finished.map_err(self.store.failed("write", &self.path))
    }
}

/// An open file whose reads are retried.
#[derive(Debug)]
struct RetryingFile {
    file: Box<dyn ReadFile>,
    place: PathBuf,
}

impl ReadFile for RetryingFile {
    fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    fn read_exact_at(&self, into: &mut [u8], start: u64) -> io::Result<()> {
        with_retries(&self.place, || self.file.read_exact_at(into, start))
    }

    fn read_uncached(&self, into: &mut [u8], start: u64, least: usize) -> io::Result<bool> {
        with_retries(&self.place, || self.file.read_uncached(into, start, least))
    }
}
