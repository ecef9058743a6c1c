//! The errors of a store, as those of a save.

use std::io;

use crate::{SaveError, store::Store};

/// Converts an I/O error.
pub(crate) fn failed<'a>(
    store: &'a dyn Store,
    action: &'static str,
    path: &'a str,
) -> impl FnOnce(io::Error) -> SaveError + 'a {
    move |source| SaveError::Io {
        action,
        path: store.place(path),
        source,
    }
}
