//! Errors of operations on whole checkpoints.

use std::path::PathBuf;

use crate::{HeaderError, LoadError, SaveError};

/// The reason why an operation on a whole checkpoint failed. Its output does not exist then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// A checkpoint can't be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The new checkpoint can't be saved, or a file can't be written.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// The source has no parameters.
    #[error("{} contains no parameters", .path.display())]
    NoParameters {
        /// The checkpoint or the file.
        path: PathBuf,
    },
    /// The target exists.
    #[error("{} already exists and is not an empty directory: choose a new one", .path.display())]
    TargetExists {
        /// The target directory.
        path: PathBuf,
    },
    /// The target name is invalid.
    #[error("{} is not a valid name for a new directory: use a UTF-8 name that does not end in `..`", .path.display())]
    TargetName {
        /// The name.
        path: PathBuf,
    },
    /// The header of a plain file can't be created.
    #[error("the header of {} can't be created", .path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: HeaderError,
    },
}
