//! The files that stay open from one load to the next.

use std::sync::Arc;

use parking_lot::Mutex;

use super::shard::ShardFile;
use crate::LoadError;

/// Returns the maximum number of files of a checkpoint that stay open: a small part of the files that the process may have
/// open, because a file can have two descriptors, threads use other files at the same time, and the program has files of its
/// own.
pub(super) fn most_open() -> usize {
    /// The limit of most processes is 1024; on macOS it is 256.
    const PART: u64 = 16;
    #[cfg(unix)]
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    // Other systems do not limit the number.
    #[cfg(not(unix))]
    let limit: Option<u64> = None;
    (limit.unwrap_or(u64::MAX) / PART).clamp(4, 64) as usize
}

/// The files that were used most recently, by name, the last used file first.
#[derive(Debug, Default)]
pub(super) struct OpenFiles(Mutex<Vec<(String, Arc<Slot>)>>);

/// A file, or a placeholder while it is being opened: other users of the same file wait, users of other files do not wait.
type Slot = Mutex<Option<Arc<ShardFile>>>;

impl FromIterator<(String, ShardFile)> for OpenFiles {
    fn from_iter<I: IntoIterator<Item = (String, ShardFile)>>(files: I) -> Self {
        let slot = |file| Arc::new(Mutex::new(Some(Arc::new(file))));
        let files = files.into_iter().map(|(name, file)| (name, slot(file)));
        Self(Mutex::new(files.collect()))
    }
}

impl OpenFiles {
    /// Returns the file of this name; opens it with `open` if it is not open.
    pub(super) fn get(
        &self,
        name: &str,
        open: impl FnOnce() -> Result<ShardFile, LoadError>,
    ) -> Result<Arc<ShardFile>, LoadError> {
        let slot = self.slot(name);
        let mut file = slot.lock();
        if let Some(file) = &*file {
            return Ok(file.clone());
        }
        Ok(file.insert(Arc::new(open()?)).clone())
    }

    /// Returns the slot of a file and marks it as the most recently used.
    fn slot(&self, name: &str) -> Arc<Slot> {
        let mut open = self.0.lock();
        match open.iter().position(|(known, _)| known == name) {
            Some(at) => open[..=at].rotate_right(1),
            None => {
                open.truncate(most_open() - 1);
                open.insert(0, (name.to_owned(), Arc::default()));
            }
        }
        open[0].1.clone()
    }
}
