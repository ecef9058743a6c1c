//! Why work on a whole checkpoint failed.

use std::{io, path::PathBuf};

use crate::{HeaderError, LoadError, SaveError, store::Store};

/// Why work on a whole checkpoint failed. What was to be made is not there then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// A checkpoint can't be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The new checkpoint can't be saved.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// The file system failed.
    #[error("can't {action} {}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// There is nothing to copy.
    #[error("{} holds no parameter", .path.display())]
    NoParameters {
        /// The checkpoint or the file.
        path: PathBuf,
    },
    /// Something is there already.
    #[error("{} is there already and not an empty directory: name a new one", .path.display())]
    TargetExists {
        /// The directory that was to be made.
        path: PathBuf,
    },
    /// No directory can be made under this name.
    #[error("{} is no name for a new directory: give one in UTF-8 that does not end in `..`", .path.display())]
    TargetName {
        /// The name.
        path: PathBuf,
    },
    /// The header of a plain file can't be made.
    #[error("the header of {} can't be made", .path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: HeaderError,
    },
}

/// Turns an I/O error into ours.
pub(super) fn failed<'a>(
    store: &'a dyn Store,
    action: &'static str,
    path: &'a str,
) -> impl FnOnce(io::Error) -> ToolError + 'a {
    move |source| ToolError::Io {
        action,
        path: store.place(path),
        source,
    }
}
