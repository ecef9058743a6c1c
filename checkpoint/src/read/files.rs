//! The files of a checkpoint that are open.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use super::{Checkpoint, shard::ShardFile};
use crate::LoadError;

/// The most files that one load keeps open: far below the usual limit of a process, 1024.
const MAX_OPEN: usize = 64;

/// Opens the files of a checkpoint when they are needed, and keeps some of them.
#[derive(Debug)]
pub(super) struct Files<'a> {
    checkpoint: &'a Checkpoint,
    open: Mutex<BTreeMap<usize, Arc<ShardFile>>>,
}

impl<'a> Files<'a> {
    pub(super) fn of(checkpoint: &'a Checkpoint) -> Self {
        Self {
            checkpoint,
            open: Mutex::default(),
        }
    }

    /// The file of this name, its header proven.
    pub(super) fn get(&self, name: &str) -> Result<Arc<ShardFile>, LoadError> {
        let files = &self.checkpoint.manifest().files;
        // The proof of the manifest has shown that every chunk's file is listed, in order of names. A
        // chunk of another checkpoint may name another file.
        let at = files.binary_search_by(|f| (*f.name).cmp(name));
        let at = at.map_err(|_| LoadError::NotAFile {
            path: self.checkpoint.dir().join(name),
        })?;
        // Held while a file is opened, so that two threads do not open one.
        let mut open = self.open.lock().unwrap_or_else(|held| held.into_inner());
        if let Some(file) = open.get(&at) {
            return Ok(file.clone());
        }
        if open.len() >= MAX_OPEN {
            open.pop_first();
        }
        let file = Arc::new(ShardFile::open(self.checkpoint, &files[at])?);
        open.insert(at, file.clone());
        Ok(file)
    }
}
