//! What a checkpoint keeps from one load to the next: its open files, which headers were validated, memory, and what was compared.

use std::{collections::BTreeSet, sync::Arc};

use burn::tensor::DType;
use parking_lot::Mutex;
use tinderbox_fake::Region;

use super::{
    plan::Wanted,
    shard::{Held, ShardFile},
};
use crate::{
    FileEntry, LoadError,
    store::{FileVersion, LocalStore, Store},
};

/// Returns the maximum number of files that a checkpoint keeps open: a small part of those that the process may have open,
/// because each can have two descriptors, threads use others meanwhile, and the program has files of its own.
pub(super) fn most_open() -> usize {
    /// The limit of most processes is 1024; on macOS it is 256.
    const PART: u64 = 16;
    #[cfg(unix)]
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    // Not limited in number on other systems.
    #[cfg(not(unix))]
    let limit: Option<u64> = None;
    (limit.unwrap_or(u64::MAX) / PART).clamp(4, 64) as usize
}

/// The memory of loads, the headers that were validated, and the parts of tensors that were found to be equal.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The memory of each thread of a load. It is kept for the next load: the threads end, and an allocator that freed and
    /// allocated it each time between values would need more memory in the end.
    pub(super) scratch: Vec<Held>,
    /// The indices of the files whose headers were validated.
    pub(super) proven: BTreeSet<usize>,
    /// The parts that were equal, of a model that is loaded again and again.
    pub(super) compared: Vec<[Compared; 2]>,
}

/// A part of a tensor that was compared.
#[derive(Debug, PartialEq)]
pub(super) struct Compared {
    name: String,
    region: Region,
    transposed: bool,
    dtype: DType,
}

impl Compared {
    pub(super) fn of(wanted: &Wanted<'_>) -> Self {
        Self {
            name: wanted.tensor.name.clone(),
            region: wanted.region.clone(),
            transposed: wanted.transposed,
            dtype: wanted.dtype,
        }
    }
}

/// The most recently used files.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Each with its index in the manifest, the most recently used first.
    open: Mutex<Vec<(usize, Arc<Slot>)>>,
    /// Where files without digests are.
    pub(super) plain: Option<Plain>,
}

/// Files without digests: one that is opened again must be the same, because another of the same name could not be
/// detected.
#[derive(Debug)]
pub(super) struct Plain {
    dir: LocalStore,
    versions: Vec<FileVersion>,
}

/// A file, or a placeholder while it is being opened: other users of the same file wait, users of other files
/// do not.
type Slot = Mutex<Option<Arc<ShardFile>>>;

impl Plain {
    fn open(&self, name: &str, position: usize) -> Result<ShardFile, LoadError> {
        let (file, version) = self.dir.open_version(name)?;
        let path = self.dir.place(name);
        match self.versions.get(position) == Some(&version) {
            true => Ok(ShardFile::new(path, file, None)),
            false => Err(LoadError::Replaced { path }),
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
        let first = first
            .into_iter()
            .map(|file| Mutex::new(Some(Arc::new(file))));
        let dir = dir.clone();
        Self {
            open: Mutex::new(first.map(Arc::new).enumerate().collect()),
            plain: Some(Plain { dir, versions }),
        }
    }

    /// Returns the file at this index in the manifest, with a validated header. One with digests is opened by `open`.
    pub(super) fn get(
        &self,
        entry: &FileEntry,
        position: usize,
        open: impl FnOnce() -> Result<ShardFile, LoadError>,
    ) -> Result<Arc<ShardFile>, LoadError> {
        let slot = self.slot(position);
        let mut file = slot.lock();
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
        let mut open = self.open.lock();
        let known = open.iter().position(|(at, _)| *at == position);
        let slot = match known {
            Some(at) => open.remove(at).1,
            None => {
                open.truncate(most_open() - 1);
                Arc::default()
            }
        };
        open.insert(0, (position, slot.clone()));
        slot
    }
}
