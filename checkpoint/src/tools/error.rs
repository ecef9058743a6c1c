//! Why work on a whole checkpoint failed.

use std::{io, path::PathBuf};

use crate::{HeaderError, LoadError, SaveError, store::Store};

/// Why work on a whole checkpoint failed. What was to be made is not there then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// A checkpoint can't be read.
    #[error(transparent)]
    Load {
        /// What went wrong.
        #[from]
        source: LoadError,
    },
    /// The new checkpoint can't be saved.
    #[error(transparent)]
    Save {
        /// What went wrong.
        #[from]
        source: SaveError,
    },
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
    /// The header of a plain file can't be used.
    #[error("the header of {} can't be used", .path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: HeaderError,
    },
    /// The directory holds no model.
    #[error("{} has neither model.safetensors nor model.safetensors.index.json", .path.display())]
    NoModel {
        /// The directory.
        path: PathBuf,
    },
    /// The directory holds two models.
    #[error("{} has a model.safetensors that its index does not name: give the file that is meant", .path.display())]
    TwoModels {
        /// The directory.
        path: PathBuf,
    },
    /// The index is not one of Hugging Face's form.
    #[error("{} is not the JSON of a safetensors index", .path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// What went wrong.
        source: serde_json::Error,
    },
    /// The index names a file that may lie elsewhere.
    #[error("{} names file `{name}`, which is no plain name of a file beside it", .path.display())]
    IndexFile {
        /// The index.
        path: PathBuf,
        /// The name in it.
        name: String,
    },
    /// The index and the files that it names hold other tensors.
    #[error("{} does not fit its files: not in the file that it names: {missing:?}, in a file and not in it: {unlisted:?}", .path.display())]
    IndexMismatch {
        /// The index.
        path: PathBuf,
        /// Tensors that are not in the file that the index names, by name.
        missing: Vec<String>,
        /// Tensors that are in a file for which the index does not name them, by name.
        unlisted: Vec<String>,
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
