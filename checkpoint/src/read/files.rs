//! The open files of a checkpoint.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::{Checkpoint, shard::ShardFile};
use crate::LoadError;

/// Maximum number of files that a checkpoint keeps open: far below the usual limit of a process, 1024.
const MAX_OPEN: usize = 64;

/// The most recently used files.
#[derive(Debug, Default)]
pub(super) struct Files {
    open: Mutex<Open>,
    /// All files without digests; they stay open, because another file of the same name could not be
    /// detected.
    plain: Vec<Arc<ShardFile>>,
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

impl Files {
    /// Creates a set of files without digests, which stay open.
    pub(super) fn plain(files: Vec<ShardFile>) -> Self {
        Self {
            plain: files.into_iter().map(Arc::new).collect(),
            ..Self::default()
        }
    }

    /// Returns whether these are files without digests.
    pub(super) fn are_plain(&self) -> bool {
        !self.plain.is_empty()
    }

    /// Returns the file at this index in the manifest, with a validated header.
    pub(super) fn get(
        &self,
        checkpoint: &Checkpoint,
        position: usize,
    ) -> Result<Arc<ShardFile>, LoadError> {
        if let Some(file) = self.plain.get(position) {
            return Ok(file.clone());
        }
        let slot = self.slot(position);
        let mut file = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*file {
            return Ok(file.clone());
        }
        let opened = Arc::new(ShardFile::open(checkpoint, position)?);
        Ok(file.insert(opened).clone())
    }

    /// Returns the slot of a file and marks it as the most recently used.
    fn slot(&self, position: usize) -> Arc<Slot> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.time += 1;
        let time = open.time;
        if !open.files.contains_key(&position) && open.files.len() >= MAX_OPEN {
            let oldest = open.files.iter().min_by_key(|(_, (used, _))| *used);
            let oldest = oldest.map(|(position, _)| *position);
            oldest.map(|position| open.files.remove(&position));
        }
        let (used, slot) = open.files.entry(position).or_default();
        *used = time;
        slot.clone()
    }
}
