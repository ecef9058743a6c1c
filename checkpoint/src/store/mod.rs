//! Where checkpoints are kept.
//!
//! All that saving and loading do to files goes through [`Store`]: few operations, each with a promise
//! that [`check_conformance`] tests. Paths are relative to the store's root and use `/`.
//!
//! [`LocalStore`] is a directory. With the feature `object-store`, `BucketStore` is a bucket of S3, Google
//! Cloud Storage or Azure (features `aws`, `gcp`, `azure`), or one in memory.

mod conformance;
mod local;
#[cfg(feature = "object-store")]
mod object;
mod retrying;

use std::{any::Any, fmt, io, path::PathBuf};

use crate::{
    FormatError, Manifest,
    format::{MANIFEST_FILE, MAX_MANIFEST_BYTES, decode_manifest, temporary_name},
};

pub use conformance::{Violation, check_conformance};
pub use local::LocalStore;
#[cfg(feature = "object-store")]
pub use object::{BucketError, BucketStore};
pub(crate) use retrying::Retrying;

/// A place for the checkpoints of a run: a directory, or a bucket.
///
/// A store that has directories and renames implements the operations and takes [`publish`](Self::publish),
/// [`retire`](Self::retire) and [`files_of`](Self::files_of) as they are. One that has none says so in
/// [`renames`](Self::renames), makes [`create_dir`](Self::create_dir), [`remove_dir`](Self::remove_dir) and
/// [`sync_dir`](Self::sync_dir) do nothing, refuses the renames, and publishes by one conditional write of
/// the manifest: the files of an attempt stay where it wrote them.
pub trait Store: fmt::Debug + Send + Sync {
    /// Where a path is, for messages; `""` is the root.
    fn place(&self, path: &str) -> PathBuf;

    /// What is directly in a directory, in any order.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such directory.
    fn list(&self, dir: &str) -> io::Result<Vec<Found>>;

    /// What a name stands for; a link stands for itself.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is nothing.
    fn look(&self, path: &str) -> io::Result<Found>;

    /// Opens a plain file for reading.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is nothing, `InvalidInput` for anything but a plain file: links, pipes and
    /// devices could lead out of the store or block.
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadFile>>;

    /// Makes a new file.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` when the name is taken: a file that is there belongs to somebody, and stays.
    fn create(&self, path: &str) -> io::Result<Box<dyn WriteFile>>;

    /// Makes the root, with all above it, durably; nothing when it is there.
    fn create_root(&self) -> io::Result<()>;

    /// Makes a directory.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` when the name is taken, where there are directories.
    fn create_dir(&self, path: &str) -> io::Result<()>;

    /// Gives a file or a directory another name, in one instant. A file replaces another; a directory
    /// replaces nothing.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` or `DirectoryNotEmpty` when a directory would replace something, `Unsupported` where
    /// there are no [`renames`](Self::renames).
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Exchanges two directories, in one instant.
    ///
    /// # Errors
    ///
    /// `Unsupported` where there is no such instant.
    fn exchange(&self, one: &str, other: &str) -> io::Result<()>;

    /// Removes a file, or a link itself.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is nothing, where the store looks.
    fn remove_file(&self, path: &str) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, path: &str) -> io::Result<()>;

    /// Makes the names in a directory durable; `""` is the root.
    fn sync_dir(&self, path: &str) -> io::Result<()>;

    /// Makes a new durable file and locks it before it has contents, until the lock is dropped or the
    /// process ends.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` when the name is taken.
    fn create_locked(&self, path: &str, bytes: &[u8]) -> io::Result<Lock>;

    /// Whether locks tell a living holder from a dead one, on every machine that reaches the store. Without, nothing is
    /// taken for dead.
    fn has_locks(&self) -> bool {
        true
    }

    /// The lock of such a file; `None` when somebody is seen to hold it. With `shared`, several may hold it.
    ///
    /// # Errors
    ///
    /// `Unsupported` where there are no [locks](Self::has_locks), and nobody is seen to hold it.
    fn try_lock(&self, path: &str, shared: bool) -> io::Result<Option<Lock>>;

    /// Everything in a small file. Memory: its size, at most the limit.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and `FileTooLarge` beyond the limit.
    fn read_small(&self, path: &str, limit_bytes: u64) -> io::Result<Vec<u8>> {
        let file = self.open(path)?;
        if file.bytes() > limit_bytes {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        // Below the limit, which every platform can allocate.
        let mut bytes = vec![0; file.bytes() as usize];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Whether there are renames. Without them, the files of an attempt stay under its name when it is
    /// published, and there is never a directory of what is being removed.
    fn renames(&self) -> bool {
        true
    }

    /// Makes a small file appear whole under its name, also over another, or not at all. The name is durable
    /// once its directory was synced.
    fn put(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = temporary_name(path);
        let written = (|| {
            let mut file = self.create(&temporary)?;
            file.write_all(bytes)?;
            file.finish()?;
            self.rename(&temporary, path)
        })();
        if written.is_err() {
            // The first error is the one to report; a file that was never made can't be removed.
            let _ = self.remove_file(&temporary);
        }
        written
    }

    /// Makes the directory of a finished attempt the checkpoint of a step, in one instant and durably.
    /// The files in it are durable already, their names are not.
    ///
    /// Gives the directory in which the files of the replaced checkpoint are now, for the caller to remove:
    /// here the attempt's own. `None` when nothing was replaced, or when it can't be told.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` or `DirectoryNotEmpty` when the step is there, `NotFound` when it is to be
    /// replaced and is not, `Unsupported` where it can't be replaced in one instant.
    fn publish(
        &self,
        attempt: &str,
        step: &str,
        manifest: &[u8],
        replace: bool,
    ) -> Result<Option<String>, PublishError> {
        let at = |path: &str| {
            let path = path.to_owned();
            move |source| PublishError::Unpublished { path, source }
        };
        let path = join(attempt, MANIFEST_FILE);
        self.put(&path, manifest).map_err(at(&path))?;
        self.sync_dir(attempt).map_err(at(attempt))?;
        match replace {
            true => self.exchange(attempt, step),
            false => self.rename(attempt, step),
        }
        .map_err(at(step))?;
        self.sync_dir("")
            .map_err(|source| PublishError::NotDurable { source })?;
        Ok(replace.then(|| attempt.to_owned()))
    }

    /// Takes the checkpoint of a step away in one instant and durably; its files are under the name
    /// `trash` then, or without [`renames`](Self::renames) where they were.
    fn retire(&self, step: &str, trash: &str) -> io::Result<()> {
        self.rename(step, trash)?;
        self.sync_dir("")
    }

    /// Where the files of a step are that an attempt has published: in the directory of the step, where
    /// publishing renames.
    fn files_of(&self, step: &str, attempt: &str) -> String {
        let _ = attempt;
        step.to_owned()
    }
}

/// Why a publication failed.
#[derive(Debug)]
pub enum PublishError {
    /// Nothing was published.
    Unpublished {
        /// What could not be written, made durable or renamed.
        path: String,
        /// What went wrong.
        source: io::Error,
    },
    /// The checkpoint is there, and may be gone after a loss of power.
    NotDurable {
        /// What went wrong.
        source: io::Error,
    },
    /// The store has not said whether the checkpoint is there, or may be soon. The files of the attempt
    /// must stay.
    Unknown {
        /// What went wrong.
        source: io::Error,
    },
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The name, without the directory. Lossy where it is not UTF-8: no name of ours is.
    pub name: String,
    /// What it is.
    pub kind: FoundKind,
    /// Size of a file in bytes.
    pub bytes: u64,
}

/// What a name can stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundKind {
    /// A plain file.
    File,
    /// A directory.
    Dir,
    /// Links, pipes, devices: nothing that is ours.
    Other,
}

/// A file that is read, from any thread.
pub trait ReadFile: fmt::Debug + Send + Sync {
    /// Its size when it was opened.
    fn bytes(&self) -> u64;

    /// Fills the buffer from a place in the file.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` when the file ends before.
    fn read_exact_at(&self, into: &mut [u8], start: u64) -> io::Result<()>;
}

/// A new file. Dropped before it is finished, it may be there in part, or not at all.
pub trait WriteFile: fmt::Debug + Send {
    /// Adds bytes to its end.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes all that was written durable. The name is durable once its directory was synced.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// A lock of a file, until it is dropped.
#[derive(derive_more::Debug)]
pub struct Lock {
    #[debug(skip)]
    _held: Box<dyn Any + Send + Sync>,
}

impl Lock {
    /// The lock that something holds until it is dropped: an open file, say.
    pub fn of(held: impl Any + Send + Sync) -> Self {
        Self {
            _held: Box::new(held),
        }
    }
}

/// A name in a directory; `""` is the root.
pub(crate) fn join(dir: &str, name: &str) -> String {
    match dir {
        "" => name.to_owned(),
        _ => format!("{dir}/{name}"),
    }
}

/// What was done with a name; `None` where there is nothing of that name.
pub(crate) fn existing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// The manifest in a directory; `None` where there is none.
pub(crate) fn read_manifest(
    store: &dyn Store,
    dir: &str,
) -> io::Result<Option<Result<Manifest, FormatError>>> {
    let bytes = existing(store.read_small(&join(dir, MANIFEST_FILE), MAX_MANIFEST_BYTES))?;
    Ok(bytes.map(|bytes| decode_manifest(&bytes)))
}

/// Removes a directory and all in it, the file named `last` after all others are durably gone; links are not followed.
/// What somebody else removes meanwhile is no error.
pub(crate) fn remove_tree(store: &dyn Store, dir: &str, last: &str) -> io::Result<()> {
    let gone = |result: io::Result<()>| existing(result).map(drop);
    if store
        .look(dir)
        .is_ok_and(|found| found.kind != FoundKind::Dir)
    {
        // A link to a directory: what it leads to is somebody else's.
        return gone(store.remove_file(dir));
    }
    let Some(mut found) = existing(store.list(dir))? else {
        return Ok(());
    };
    found.sort_by_key(|entry| entry.name == last);
    for entry in found {
        if entry.name == last {
            gone(store.sync_dir(dir))?;
        }
        let path = join(dir, &entry.name);
        match entry.kind {
            FoundKind::Dir => remove_tree(store, &path, "")?,
            FoundKind::File | FoundKind::Other => gone(store.remove_file(&path))?,
        }
    }
    gone(store.remove_dir(dir))
}
