//! The errors of a store, as those of a load.

use std::io;

use crate::{LoadError, store::Store};

/// Converts an I/O error.
pub(crate) fn failed<'a>(
    store: &'a dyn Store,
    action: &'static str,
    path: &'a str,
) -> impl FnOnce(io::Error) -> LoadError + 'a {
    move |source| match source.kind() {
        io::ErrorKind::NotFound => LoadError::FileMissing {
            path: store.place(path),
        },
        io::ErrorKind::InvalidInput => LoadError::NotAFile {
            path: store.place(path),
        },
        _ => LoadError::Io {
            action,
            path: store.place(path),
            source,
        },
    }
}
