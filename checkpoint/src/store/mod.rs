//! Storage of checkpoints.
//!
//! Saving and loading access files only through [`Store`]: few operations, whose contract
//! `testing::check_store` tests (feature `testing`). Paths are relative to the store's root and use `/`.
//!
//! [`LocalStore`] is a directory. With the feature `object-store`, `BucketStore` is a bucket of S3, Google
//! Cloud Storage or Azure (features `aws`, `gcp`, `azure`), or an in-memory bucket.

mod direct;
mod failure;
mod local;
#[cfg(feature = "object-store")]
mod object;
mod retrying;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fmt, io};

use crate::format::{MANIFEST_FILE, MAX_MANIFEST_BYTES, names};
use crate::{FormatError, Manifest};

pub(crate) use failure::{Failure, StoreExt};
pub(crate) use local::FileVersion;
pub use local::LocalStore;
#[cfg(feature = "object-store")]
pub use object::{BucketError, BucketStore};
pub(crate) use retrying::Retrying;

/// Storage for the checkpoints of a run: a directory or a bucket. The root has the path `""`.
///
/// # Contract
///
/// - No method replaces an existing file or directory, except [`put`](Self::put), a [`rename`](Self::rename) of a file,
///   [`exchange`](Self::exchange) and the publication of a [`Replacement`](Publication::Replacement).
/// - The bytes of a file are durable after [`finish`](WriteFile::finish), and its name after [`sync_dir`](Self::sync_dir) of
///   its directory. The effect of [`publish`](Self::publish) and [`retire`](Self::retire) is durable when they return.
/// - `put`, `publish` and `retire` are atomic: every process sees their effect completely or not at all.
/// - An error of any other method does not exclude its effect, complete or in part.
/// - Several threads and processes call the methods at the same time.
///
/// # Stores with and without directories
///
/// A store with directories and renames implements the required methods, and `exchange` if it can: the defaults of all others
/// follow from them. A store without directories and renames returns `false` from [`renames`](Self::renames), implements
/// [`create_dir`](Self::create_dir), [`remove_dir`](Self::remove_dir) and [`sync_dir`](Self::sync_dir) as no-ops, returns
/// `Unsupported` from `rename`, and implements `put`, `publish`, `retire` and [`files_of`](Self::files_of): it publishes by one
/// conditional write of the manifest, and the files of an attempt stay where they were written.
///
/// A store that wraps another forwards every method, also those with a default.
pub trait Store: fmt::Debug + Send + Sync {
    /// Returns the location of a path, for messages; `""` is the root.
    fn place(&self, path: &str) -> PathBuf;

    /// Lists the direct entries of a directory, in any order.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if the directory does not exist.
    fn list(&self, dir: &str) -> io::Result<Vec<Found>>;

    /// Looks up an entry, without following it if it is a link. A link in the middle of the path is followed: the directory of
    /// a step can be one.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if it does not exist.
    fn look(&self, path: &str) -> io::Result<Found>;

    /// Returns the target of a symbolic link, as the link contains it; `None` if the entry is not a link.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if the entry does not exist, in a store with links.
    fn link_target(&self, _path: &str) -> io::Result<Option<PathBuf>> {
        Ok(None)
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if it does not exist, and `InvalidInput` for anything but a regular file: links,
    /// pipes and devices could lead out of the store or block.
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadFile>>;

    /// Creates a new file.
    ///
    /// # Errors
    ///
    /// Returns `AlreadyExists` if the name exists: an existing file is never overwritten.
    fn create(&self, path: &str) -> io::Result<Box<dyn WriteFile>>;

    /// Creates a directory. The root is created with its ancestors, durably; nothing is done if it exists.
    ///
    /// # Errors
    ///
    /// Returns `AlreadyExists` if a name other than the root exists, in a store with directories.
    fn create_dir(&self, path: &str) -> io::Result<()>;

    /// Renames a file, a directory or a link itself atomically. A file can replace another; a directory or a link replaces
    /// nothing.
    ///
    /// # Errors
    ///
    /// Returns `AlreadyExists` or `DirectoryNotEmpty` if a directory or a link would replace something, and
    /// `Unsupported` in a store without [`renames`](Self::renames).
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Exchanges two directories, or a directory and a link to one, atomically. Only a store that can do this can replace a
    /// step.
    ///
    /// # Errors
    ///
    /// Returns `Unsupported` if the store can't do this; the default implementation always does.
    fn exchange(&self, _one: &str, _other: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes a file, or a link itself.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if it does not exist, in a store that checks.
    fn remove_file(&self, path: &str) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, path: &str) -> io::Result<()>;

    /// Makes the entries of a directory durable; `""` is the root.
    fn sync_dir(&self, path: &str) -> io::Result<()>;

    /// Creates a new durable file and locks it before it has contents, until the lock is dropped or the
    /// process ends.
    ///
    /// # Errors
    ///
    /// Returns `AlreadyExists` if the name exists.
    fn create_locked(&self, path: &str, bytes: &[u8]) -> io::Result<Lock>;

    /// Returns whether locks distinguish a live holder from a dead one, on every machine that can access the
    /// store. Without locks, no attempt is considered dead.
    fn has_locks(&self) -> bool {
        true
    }

    /// Acquires the lock of a file that [`create_locked`](Self::create_locked) has created; returns `None` if another holder is
    /// known.
    ///
    /// # Errors
    ///
    /// Returns `Unsupported` if the store has no [locks](Self::has_locks) and no other holder is known.
    fn try_lock(&self, path: &str) -> io::Result<Option<Lock>>;

    /// Reads a whole small file: in a bucket, with one request. Memory: its size, at most the limit.
    ///
    /// # Errors
    ///
    /// See [`open`](Self::open); `FileTooLarge` if the file exceeds the limit.
    fn read_small(&self, path: &str, limit_bytes: u64) -> io::Result<Vec<u8>> {
        let file = self.open(path)?;
        if file.bytes() > limit_bytes {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        // At most the limit, which every platform can allocate.
        let mut bytes = vec![0; file.bytes() as usize];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Returns whether the store supports renames. Without them, the files of a published attempt stay under
    /// the attempt's name, and there is never a directory of a removal in progress.
    fn renames(&self) -> bool {
        true
    }

    /// Writes a small file atomically, replacing an existing one. The entry is durable after a sync of its
    /// directory.
    fn put(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = names::temporary(path);
        let written = (|| {
            let mut file = self.create(&temporary)?;
            file.write_all(bytes)?;
            file.finish()?;
            self.rename(&temporary, path)
        })();
        if written.is_err() {
            // Reports the first error; a temporary file that was never created can't be removed.
            let _ = self.remove_file(&temporary);
        }
        written
    }

    /// Publishes the directory of a finished attempt as the checkpoint of a step, atomically and durably. The
    /// contents of its files are already durable, its entries are not.
    ///
    /// Returns the directory that now contains the files of the replaced checkpoint, or is now the link that was replaced: the
    /// caller removes it. In this implementation it is the attempt's own. Returns `None` if nothing was replaced, or if it is
    /// unknown.
    ///
    /// # Errors
    ///
    /// Returns `AlreadyExists` or `DirectoryNotEmpty` if a new step exists, `NotFound` if a step to replace does not, and
    /// `Unsupported` if it can't be replaced atomically.
    fn publish(
        &self,
        attempt: &str,
        step: &str,
        manifest: &[u8],
        publication: Publication,
    ) -> Result<Option<String>, PublishError> {
        let at = PublishError::at;
        let path = join(attempt, MANIFEST_FILE);
        self.put(&path, manifest).map_err(at(&path))?;
        self.sync_dir(attempt).map_err(at(attempt))?;
        let moved = match publication {
            Publication::New => self.rename(attempt, step),
            Publication::Replacement => self.exchange(attempt, step),
        };
        moved.map_err(at(step))?;
        self.sync_dir("")
            .map_err(|source| PublishError::NotDurable { source })?;
        Ok((publication == Publication::Replacement).then(|| attempt.to_owned()))
    }

    /// Retires the checkpoint of a step atomically and durably; its files are then under the name `trash`, or
    /// in their previous location in a store without [`renames`](Self::renames).
    fn retire(&self, step: &str, trash: &str) -> io::Result<()> {
        self.rename(step, trash)?;
        self.sync_dir("")
    }

    /// Returns the location of the files of a step that an attempt has published: the directory of the step,
    /// in a store with renames.
    fn files_of(&self, step: &str, _attempt: &str) -> String {
        step.to_owned()
    }
}

/// The effect of a publication on an earlier checkpoint of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publication {
    /// The step has no checkpoint. If it has one, nothing is published.
    New,
    /// The checkpoint of the step is replaced.
    Replacement,
}

/// The reason why a publication failed.
#[derive(Debug)]
pub enum PublishError {
    /// Nothing was published.
    Unpublished {
        /// The file or directory that could not be written, made durable or renamed.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The checkpoint was published, but may be lost in a power failure.
    NotDurable {
        /// The cause.
        source: io::Error,
    },
    /// The store did not report whether the checkpoint was published, and it may still appear. The files of
    /// the attempt must be kept.
    Unknown {
        /// The cause.
        source: io::Error,
    },
}

impl PublishError {
    /// Returns the conversion of an error that occurred at a path, before publication.
    fn at(path: &str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Unpublished { path, source }
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The name, without the directory. Lossy if it is not UTF-8; all names of this crate are.
    pub name: String,
    /// The kind of entry.
    pub kind: FoundKind,
    /// Size of a file in bytes.
    pub bytes: u64,
    /// The time of the last write to a file; `None` if the store does not know it.
    pub modified: Option<SystemTime>,
}

/// The kind of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link, whether or not its target exists: never created by this crate.
    Link,
    /// Pipes, devices: never created by this crate.
    Other,
}

/// A file that can be read from any thread.
pub trait ReadFile: fmt::Debug + Send + Sync {
    /// Returns the size of the file when it was opened.
    fn bytes(&self) -> u64;

    /// Fills the buffer from an offset in the file.
    ///
    /// # Errors
    ///
    /// Returns `UnexpectedEof` if the file ends before the buffer is full.
    fn read_exact_at(&self, into: &mut [u8], start: u64) -> io::Result<()>;

    /// Reads from an offset in the file around the cache of the system, at least the first `least` bytes of the buffer: for
    /// bytes that the cache would drop before they are read again. Returns `false` if that is not possible for this buffer and
    /// offset; the default implementation always does. Disks read multiples of 4096 bytes at such offsets and addresses.
    ///
    /// # Errors
    ///
    /// Returns `UnexpectedEof` if the file ends before.
    fn read_uncached(&self, _into: &mut [u8], _start: u64, _least: usize) -> io::Result<bool> {
        Ok(false)
    }
}

/// A new file. If it is dropped before it is finished, it may exist in part, or not at all.
pub trait WriteFile: fmt::Debug + Send {
    /// Appends bytes.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes all written bytes durable. The entry is durable after a sync of its directory.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// A lock of a file, until it is dropped.
#[derive(derive_more::Debug)]
pub struct Lock {
    #[debug(skip)]
    _held: Box<dyn Any + Send + Sync>,
}

impl Lock {
    /// Creates a lock from any value that holds it until dropped, such as an open file.
    pub fn of(held: impl Any + Send + Sync) -> Self {
        Self {
            _held: Box::new(held),
        }
    }
}

/// Joins a directory and a path in it; `""` is the root, or the directory itself.
pub(crate) fn join(dir: &str, path: &str) -> String {
    match (dir, path) {
        ("", one) | (one, "") => one.to_owned(),
        _ => format!("{dir}/{path}"),
    }
}

/// Returns the directory and the name of a path of the system; `None` if it does not end in a name in UTF-8.
pub(crate) fn parent_of(path: &Path) -> Option<(&Path, &str)> {
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let name = path.file_name()?.to_str()?;
    Some((parent.unwrap_or(Path::new(".")), name))
}

/// Converts `NotFound` to `None`.
pub(crate) fn existing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Reads the manifest of a directory; returns `None` if the directory has no manifest.
pub(crate) fn read_manifest(
    store: &dyn Store,
    dir: &str,
) -> io::Result<Option<Result<Manifest, FormatError>>> {
    let bytes = existing(store.read_small(&join(dir, MANIFEST_FILE), MAX_MANIFEST_BYTES))?;
    Ok(bytes.map(|bytes| Manifest::from_bytes(&bytes)))
}

/// Returns whether an entry is a symbolic link.
pub(crate) fn is_link(store: &dyn Store, path: &str) -> io::Result<bool> {
    // Other stores have no links, and a lookup is a request.
    Ok(store.renames() && store.look(path)?.kind == FoundKind::Link)
}

/// Removes a directory and its contents, the file named `last` after all other files are durably removed. Links are not
/// followed; entries that another process removes concurrently are not errors.
pub(crate) fn remove_tree(store: &dyn Store, dir: &str, last: &str) -> io::Result<()> {
    let gone = |result: io::Result<()>| existing(result).map(drop);
    match existing(store.look(dir))?.map(|found| found.kind) {
        Some(FoundKind::Dir) => {}
        // A link to a directory: its target is not ours.
        Some(_) => return gone(store.remove_file(dir)),
        None => return Ok(()),
    }
    let mut found = existing(store.list(dir))?.unwrap_or_default();
    found.sort_by_key(|entry| entry.name == last);
    for entry in found {
        if entry.name == last {
            gone(store.sync_dir(dir))?;
        }
        let path = join(dir, &entry.name);
        match entry.kind {
            FoundKind::Dir => remove_tree(store, &path, "")?,
            FoundKind::File | FoundKind::Link | FoundKind::Other => gone(store.remove_file(&path))?,
        }
    }
    gone(store.remove_dir(dir))
}
