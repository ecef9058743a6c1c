//! The open files of a checkpoint.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::{failed, shard::ShardFile};
use crate::{
    FileEntry, LoadError,
    store::{FileVersion, LocalStore, Store},
};

/// Returns the maximum number of files that a checkpoint keeps open: a small part of those that the process may have open,
/// because each can have two descriptors, threads use others meanwhile, and the program has files of its own.
pub(super) fn most_open() -> usize {
    /// The limit of most processes is 1024; on macOS it is 256.
    const PART: u64 = 16;
    let limit = descriptors().unwrap_or(u64::MAX);
    (limit / PART).clamp(4, 64) as usize
}

/// Returns how many files the process may have open, if there is a limit.
#[cfg(unix)]
fn descriptors() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile).current
}

/// Not limited in number on other systems.
#[cfg(not(unix))]
fn descriptors() -> Option<u64> {
    None
}

/// The most recently used files.
#[derive(Debug)]
pub(super) struct Files {
    open: Mutex<Open>,
    most: usize,
    /// Where files without digests are.
    plain: Option<Plain>,
}

/// Files without digests: one that is opened again must be the same, because another of the same name could not be
/// detected.
#[derive(Debug)]
struct Plain {
    dir: LocalStore,
    versions: Vec<FileVersion>,
}

/// Files by index in the manifest, with the time of their last use.
#[derive(Debug, Default)]
struct Open {
    files: BTreeMap<usize, (u64, Arc<Slot>)>,
    time: u64,
}

/// A file, or a placeholder while it is being opened: other users of the same file wait, users of other files
/// do not.
type Slot = Mutex<Option<Arc<ShardFile>>>;

impl Plain {
    fn open(&self, name: &str, position: usize) -> Result<ShardFile, LoadError> {
        let opened = self.dir.open_version(name);
        let (file, version) = opened.map_err(failed(&self.dir, "open", name))?;
        let path = self.dir.place(name);
        match self.versions.get(position) == Some(&version) {
            true => Ok(ShardFile::plain(path, file)),
            false => Err(LoadError::Replaced { path }),
        }
    }
}

impl Default for Files {
    fn default() -> Self {
        Self {
            open: Mutex::default(),
            most: most_open(),
            plain: None,
        }
    }
}

impl Files {
    /// Creates a set of files without digests, of which the first are open.
    pub(super) fn plain(
        dir: &LocalStore,
        versions: Vec<FileVersion>,
        first: Vec<ShardFile>,
    ) -> Self {
        let first = first.into_iter().enumerate().map(|(position, file)| {
            let slot = Mutex::new(Some(Arc::new(file)));
            (position, (0, Arc::new(slot)))
        });
        let open = Open {
            files: first.collect(),
            time: 0,
        };
        let dir = dir.clone();
        Self {
            open: Mutex::new(open),
            plain: Some(Plain { dir, versions }),
            ..Self::default()
        }
    }

    /// Returns whether these are files without digests.
    pub(super) fn are_plain(&self) -> bool {
        self.plain.is_some()
    }

    /// Returns the file at this index in the manifest, with a validated header. One with digests is opened by `open`.
    pub(super) fn get(
        &self,
        entry: &FileEntry,
        position: usize,
        open: impl FnOnce() -> Result<ShardFile, LoadError>,
    ) -> Result<Arc<ShardFile>, LoadError> {
        let slot = self.slot(position);
        let mut file = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*file {
            return Ok(file.clone());
        }
        let opened = match &self.plain {
            Some(plain) => plain.open(&entry.name, position)?,
            None => open()?,
        };
        Ok(file.insert(Arc::new(opened)).clone())
    }

    /// Returns the slot of a file and marks it as the most recently used.
    fn slot(&self, position: usize) -> Arc<Slot> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.time += 1;
        let time = open.time;
        if !open.files.contains_key(&position) && open.files.len() >= self.most {
            let oldest = open.files.iter().min_by_key(|(_, (used, _))| *used);
            let oldest = oldest.map(|(position, _)| *position);
            oldest.map(|position| open.files.remove(&position));
        }
        let (used, slot) = open.files.entry(position).or_default();
        *used = time;
        slot.clone()
    }
}
