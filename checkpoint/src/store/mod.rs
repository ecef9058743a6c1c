//! Storage of checkpoints.
//!
//! Saving and loading access files only through [`Store`], a trait with few operations. `testing::check_store` tests its
//! contract (feature `testing`). Paths are relative to the store's root and use `/`.
//!
//! [`LocalStore`] is a directory. With the feature `object-store`, `BucketStore` is a bucket of S3, Google
//! Cloud Storage or Azure (features `aws`, `gcp`, `azure`), or an in-memory bucket.

mod direct;
mod files;
mod local;
#[cfg(feature = "object-store")]
mod object;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fmt, io};

use crate::format::{MANIFEST_FILE, names};

pub(crate) use files::{Files, StoreExt};
pub(crate) use local::FileVersion;
pub use local::LocalStore;
#[cfg(feature = "object-store")]
pub use object::{BucketError, BucketStore};

/// Storage for the checkpoints of a run: a directory or a bucket. The root has the path `""`.
///
/// # Contract
///
/// - Only four calls replace something that exists: [`put`](Self::put), a [`rename`](Self::rename) of a file,
///   [`exchange`](Self::exchange), and [`publish`](Self::publish) with [`Replacement`](Publication::Replacement).
/// - The bytes of a file are durable after [`finish`](WriteFile::finish), and its name after [`sync_dir`](Self::sync_dir)
///   of its directory. The effect of [`publish`](Self::publish) and [`retire`](Self::retire) is durable when they return.
/// - `put`, `publish` and `retire` are atomic: every process sees their effect completely or not at all.
/// - If any other method returns an error, it may nevertheless have had its effect, completely or in part.
/// - Several threads and processes may call the methods at the same time.
///
/// # Stores with and without directories
///
/// A store with directories and renames, such as a file system, implements the required methods, and `exchange` if it can.
/// The default implementations of the other methods call them. It publishes by renaming the directory of an attempt.
///
/// A store without directories and renames, such as a bucket, publishes by one conditional write of the manifest. The files
/// of an attempt stay where they were written. Such a store differs in these methods:
///
/// - [`renames`](Self::renames) returns `false`, and `rename` returns `Unsupported`.
/// - [`create_dir`](Self::create_dir), [`remove_dir`](Self::remove_dir) and [`sync_dir`](Self::sync_dir) do nothing.
/// - It implements `put`, `publish`, `retire` and [`files_of`](Self::files_of) itself.
///
/// A store that wraps another store forwards every method, including the methods with a default.
pub trait Store: fmt::Debug + Send + Sync {
    /// Returns the location of a path, for messages only; `""` is the root. In a bucket it is not a path of the system.
    fn place(&self, path: &str) -> PathBuf;

    /// Lists the direct entries of a directory, in any order.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if the directory does not exist.
    fn list(&self, dir: &str) -> io::Result<Vec<Found>>;

    /// Looks up an entry. If the entry itself is a link, returns the link. If a directory in the path is a link, follows
    /// it: the directory of a step may be a link.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if the entry does not exist.
    fn look(&self, path: &str) -> io::Result<Found>;

    /// Returns the target of a symbolic link, exactly as the link contains it; `None` if the entry is not a link.
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
    /// Returns `NotFound` if it does not exist, and `InvalidInput` for anything but a regular file. A link could lead out
    /// of the store, and a pipe or a device could block.
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadFile>>;

    /// Creates a new file, to be written.
    ///
    /// # Errors
    ///
    /// Returns `AlreadyExists` if the name exists: an existing file is never overwritten.
    fn create(&self, path: &str) -> io::Result<Box<dyn WriteFile>>;

    /// Creates a directory. For the root `""`, also creates the missing ancestors and makes all of them durable. If the
    /// root exists, succeeds.
    ///
    /// # Errors
    ///
    /// In a store with directories, returns `AlreadyExists` if a directory other than the root exists.
    fn create_dir(&self, path: &str) -> io::Result<()>;

    /// Renames a file, a directory or a link atomically. A link itself is renamed, not its target. A file may replace
    /// another file; a directory or a link replaces nothing.
    ///
    /// # Errors
    ///
    /// Returns `AlreadyExists` or `DirectoryNotEmpty` if a directory or a link would replace something, and
    /// `Unsupported` in a store without [`renames`](Self::renames).
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Exchanges the names of two directories, or of a directory and a link to a directory, atomically. The default
    /// [`publish`](Self::publish) needs this to replace the checkpoint of a step.
    ///
    /// # Errors
    ///
    /// Returns `Unsupported` if the store can't do this; the default implementation always does.
    fn exchange(&self, _one: &str, _other: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes a file or a link. The target of a link is unchanged.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if it does not exist. A bucket may not check this, and succeed.
    fn remove_file(&self, path: &str) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, path: &str) -> io::Result<()>;

    /// Makes the entries of a directory durable; `""` is the root.
    fn sync_dir(&self, path: &str) -> io::Result<()>;

    /// Creates a new file, locks it, and then writes the bytes durably. So a process that finds contents in the file also
    /// finds it locked, unless its creator is dead. The lock is held until it is dropped or the process ends. A store
    /// without [locks](Self::has_locks) only creates the file.
    ///
    /// # Errors
    ///
    /// Returns `AlreadyExists` if the name exists.
    fn create_locked(&self, path: &str, bytes: &[u8]) -> io::Result<Lock>;

    /// Returns whether every machine that can access the store sees the locks of the others. Then an unlocked file shows
    /// that its creator is dead. If this is `false`, no attempt is considered dead.
    fn has_locks(&self) -> bool {
        true
    }

    /// Acquires the lock of a file that [`create_locked`](Self::create_locked) has created. Returns `None` if another
    /// process is known to hold it.
    ///
    /// # Errors
    ///
    /// Returns `Unsupported` if the store has no [locks](Self::has_locks) and no process is known to hold this one.
    fn try_lock(&self, path: &str) -> io::Result<Option<Lock>>;

    /// Reads a small file completely. A bucket implements this with one request. Memory: the size of the file, at most the
    /// limit.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`open`](Self::open), and `FileTooLarge` if the file exceeds the limit.
    fn read_small(&self, path: &str, limit_bytes: u64) -> io::Result<Vec<u8>> {
        let file = self.open(path)?;
        if file.bytes() > limit_bytes {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        // The cast is lossless: the limits of all callers fit `usize` on every platform.
        let mut bytes = vec![0; file.bytes() as usize];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Returns whether the store supports renames. Without them, the files of a published attempt stay under the attempt's
    /// name. A removal can't rename a directory before it removes the files, so no directory has the name of a
    /// removal.
    fn renames(&self) -> bool {
        true
    }

    /// Writes a small file atomically, and replaces an existing file. Its name is durable after
    /// [`sync_dir`](Self::sync_dir) of its directory.
    fn put(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = names::temporary(path);
        let written = (|| {
            let mut file = self.create(&temporary)?;
            file.write_all(bytes)?;
            file.finish()?;
            self.rename(&temporary, path)
        })();
        if written.is_err() {
            // The caller gets the first error. This removal fails too if the temporary file was never created.
            let _ = self.remove_file(&temporary);
        }
        written
    }

    /// Publishes the directory of a finished attempt as the checkpoint of a step, atomically and durably. The caller has
    /// made the contents of the files durable, but not their names.
    ///
    /// If a checkpoint was replaced, returns the name under which it is now: a directory with its files, or a link if the
    /// step was a link. The caller removes it. In this default implementation, it has the name of the attempt, because the
    /// two were exchanged. Returns `None` if nothing was replaced, or if the name is unknown.
    ///
    /// # Errors
    ///
    /// - [`New`](Publication::New): `AlreadyExists` or `DirectoryNotEmpty` if the step exists.
    /// - [`Replacement`](Publication::Replacement): `NotFound` if the step does not exist, and `Unsupported` if the store
    ///   can't replace it atomically.
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

    /// Retires the checkpoint of a step atomically and durably: the step then has no checkpoint. The caller removes its
    /// files. They are then under the name `trash`. In a store without [`renames`](Self::renames), they stay where they
    /// are.
    fn retire(&self, step: &str, trash: &str) -> io::Result<()> {
        self.rename(step, trash)?;
        self.sync_dir("")
    }

    /// Returns the directory that has the files of a step that an attempt has published. In a store with renames, it is the
    /// directory of the step. Without renames, it is usually the directory of the attempt.
    fn files_of(&self, step: &str, _attempt: &str) -> String {
        step.to_owned()
    }
}

/// Whether a publication may replace a checkpoint of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publication {
    /// The step must have no checkpoint. If it has one, nothing is published.
    New,
    /// The checkpoint of the step is replaced. If the step has none, nothing is published.
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
    /// The checkpoint is published, but a power failure may undo the publication.
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
    /// Returns a function that adds the path to an error. For errors before the publication.
    fn at(path: &str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Unpublished { path, source }
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The name, without the directory. A name that is not UTF-8 is converted with replacement characters; all names that
    /// this crate creates are UTF-8.
    pub name: String,
    /// The kind of entry.
    pub kind: FoundKind,
    /// The size of a file in bytes; meaningless for other kinds.
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
    /// A symbolic link, whether or not its target exists. This crate creates no links, but a user may replace the directory
    /// of a step by one.
    Link,
    /// A pipe or a device, for example. This crate creates none.
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

    /// Reads from an offset in the file, without the page cache of the system. Fills at least the first `least` bytes of
    /// the buffer. This is for bytes that the cache would drop before they are read again.
    ///
    /// Returns `false`, and reads nothing, if such a read is not possible for this buffer and offset. The default
    /// implementation always returns `false`. Usual disks require that the offset, the length and the address of the buffer
    /// are multiples of 4096.
    ///
    /// # Errors
    ///
    /// Returns `UnexpectedEof` if the file ends before `least` bytes were read.
    fn read_uncached(&self, _into: &mut [u8], _start: u64, _least: usize) -> io::Result<bool> {
        Ok(false)
    }
}

/// A new file. If it is dropped before it is finished, it may exist in part, or not at all.
pub trait WriteFile: fmt::Debug + Send {
    /// Appends bytes.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes all written bytes durable. The name of the file is durable after [`Store::sync_dir`] of its directory.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// The lock of a file. Dropping it unlocks the file.
#[derive(derive_more::Debug)]
pub struct Lock {
    #[debug(skip)]
    _held: Box<dyn Any + Send + Sync>,
}

impl Lock {
    /// Creates a lock from the value that holds it, such as an open file. The lock is released when this value is dropped.
    pub fn of(held: impl Any + Send + Sync) -> Self {
        Self {
            _held: Box::new(held),
        }
    }
}

/// Joins a directory and a path in it. The directory `""` is the root. The path `""` is the directory itself.
pub(crate) fn join(dir: &str, path: &str) -> String {
    match (dir, path) {
        ("", one) | (one, "") => one.to_owned(),
        _ => format!("{dir}/{path}"),
    }
}

/// Splits a path of the operating system into its directory and its name. Returns `None` if it does not end in a name in
/// UTF-8, for example if it ends in `..`.
pub(crate) fn parent_of(path: &Path) -> Option<(&Path, &str)> {
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let name = path.file_name()?.to_str()?;
    Some((parent.unwrap_or(Path::new(".")), name))
}

/// Converts the error `NotFound` to `None`.
pub(crate) fn existing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
