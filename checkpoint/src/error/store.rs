//! The error of an operation of a store.

use std::{io, path::PathBuf};

/// A failed operation of a [`Store`](crate::store::Store).
#[derive(Debug, thiserror::Error)]
#[error("can't {action} {path}")]
pub struct StoreError {
    /// The failed operation.
    pub action: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}
