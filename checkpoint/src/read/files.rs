//! The files of a checkpoint that are open.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::{Checkpoint, shard::ShardFile};
use crate::LoadError;

/// The most files that a checkpoint keeps open: far below the usual limit of a process, 1024.
const MAX_OPEN: usize = 64;

/// Files that were needed, until others are.
#[derive(Debug, Default)]
pub(super) struct Files {
    open: Mutex<Open>,
    /// Files without digests, all of them: another file of the same name could not be told from it.
    plain: Vec<Arc<ShardFile>>,
}

/// By position in the manifest, with the time of their last use.
#[derive(Debug, Default)]
struct Open {
    files: BTreeMap<usize, (u64, Arc<ShardFile>)>,
    time: u64,
}

impl Files {
    /// Files without digests, which stay open.
    pub(super) fn plain(files: Vec<ShardFile>) -> Self {
        Self {
            plain: files.into_iter().map(Arc::new).collect(),
            ..Self::default()
        }
    }

    /// Whether these are files without digests.
    pub(super) fn are_plain(&self) -> bool {
        !self.plain.is_empty()
    }
    /// The file at this position in the manifest, its header proven.
    pub(super) fn get(
        &self,
        checkpoint: &Checkpoint,
        position: usize,
    ) -> Result<Arc<ShardFile>, LoadError> {
        if let Some(file) = self.plain.get(position) {
            return Ok(file.clone());
        }
        // Held while a file is opened, so that two threads do not open one.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.time += 1;
        let time = open.time;
        if let Some((used, file)) = open.files.get_mut(&position) {
            *used = time;
            return Ok(file.clone());
        }
        if open.files.len() >= MAX_OPEN {
            let oldest = open.files.iter().min_by_key(|(_, (used, _))| *used);
            let oldest = oldest.map(|(position, _)| *position);
            oldest.map(|position| open.files.remove(&position));
        }
        let file = Arc::new(ShardFile::open(checkpoint, position)?);
        open.files.insert(position, (time, file.clone()));
        Ok(file)
    }
}
