//! What the errors of an object store mean.

use std::io;

use object_store::Error;

/// How errors of our own are told from those of a service.
pub(super) const STORE: &str = "bucket";

/// The kind of an error as [`Store`](crate::store::Store) gives it, with the error itself as its source.
pub(super) fn to_io(error: Error) -> io::Error {
    let kind = match &error {
        Error::NotFound { .. } => io::ErrorKind::NotFound,
        Error::AlreadyExists { .. } => io::ErrorKind::AlreadyExists,
        // What was opened is not what is there now.
        Error::Precondition { .. } | Error::NotModified { .. } => {
            io::ErrorKind::StaleNetworkFileHandle
        }
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            io::ErrorKind::PermissionDenied
        }
        Error::NotSupported { .. } | Error::NotImplemented { .. } => io::ErrorKind::Unsupported,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// Whether no request was made: the store knows without one that it can't do it.
pub(super) fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::NotSupported { .. } | Error::NotImplemented { .. } | Error::InvalidPath { .. }
    )
}
