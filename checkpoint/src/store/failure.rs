//! Operations of a store whose errors contain the operation and the place.

use std::{collections::HashMap, io, path::PathBuf};

use super::{Found, Store, WriteFile, existing};
use crate::{LoadError, SaveError};

/// A failed operation of a store.
#[derive(Debug)]
pub(crate) struct Failure {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl Failure {
    /// Returns whether the operation failed because the name exists.
    pub(crate) fn name_exists(&self) -> bool {
        self.source.kind() == io::ErrorKind::AlreadyExists
    }
}

impl From<Failure> for SaveError {
    fn from(failure: Failure) -> Self {
        Self::Io {
            action: failure.action,
            path: failure.path,
            source: failure.source,
        }
    }
}

impl From<Failure> for LoadError {
    fn from(failure: Failure) -> Self {
        let (path, source) = (failure.path, failure.source);
        match source.kind() {
            io::ErrorKind::NotFound => Self::FileMissing { path },
            io::ErrorKind::InvalidInput => Self::NotAFile { path },
            _ => Self::Io {
                action: failure.action,
                path,
                source,
            },
        }
    }
}

/// Conveniences over the operations of a store, which no store implements itself.
pub(crate) trait StoreExt: Store {
    /// Returns the conversion of the error of an operation.
    fn failed(&self, action: &'static str, path: &str) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure {
            action,
            path: self.place(path),
            source,
        }
    }

    /// Looks up an entry; returns `None` if it does not exist.
    fn find(&self, path: &str) -> Result<Option<Found>, Failure> {
        existing(self.look(path)).map_err(self.failed("look at", path))
    }

    /// Lists a directory; a directory that does not exist has no entries.
    fn entries(&self, dir: &str) -> Result<Vec<Found>, Failure> {
        let listing = existing(self.list(dir)).map_err(self.failed("list", dir))?;
        Ok(listing.unwrap_or_default())
    }

    /// Lists a directory that exists; returns the entries by name.
    fn entries_by_name(&self, dir: &str) -> Result<HashMap<String, Found>, Failure> {
        let listing = self.list(dir).map_err(self.failed("list", dir))?;
        let named = listing.into_iter().map(|found| (found.name.clone(), found));
        Ok(named.collect())
    }

    /// Creates a new file.
    fn begin(&self, path: String) -> Result<NewFile<'_, Self>, Failure> {
        let file = self.create(&path).map_err(self.failed("create", &path))?;
        let store = self;
        Ok(NewFile { store, path, file })
    }

    /// Writes a small file atomically.
    fn write(&self, path: &str, bytes: &[u8]) -> Result<(), Failure> {
        self.put(path, bytes).map_err(self.failed("write", path))
    }

    /// Makes the entries of a directory durable.
    fn sync(&self, dir: &str) -> Result<(), Failure> {
        self.sync_dir(dir).map_err(self.failed("sync", dir))
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

/// A file that is being written.
pub(crate) struct NewFile<'a, S: ?Sized> {
    store: &'a S,
    path: String,
    file: Box<dyn WriteFile>,
}

impl<S: Store + ?Sized> NewFile<'_, S> {
    /// Appends bytes.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.file.write_all(bytes);
        written.map_err(self.store.failed("write", &self.path))
    }

    /// Makes all written bytes durable.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let finished = self.file.finish();
        finished.map_err(self.store.failed("write", &self.path))
    }
}
