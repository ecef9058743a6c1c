//! Interpretation of object store errors.

use std::io;

use object_store::Error;

/// Distinguishes errors of this crate from errors of a service.
pub(super) const STORE: &str = "bucket";

/// Converts an error to the kind that [`Store`](crate::store::Store) specifies, with the error itself as its
/// source.
pub(super) fn to_io(error: Error) -> io::Error {
    let kind = match &error {
        Error::NotFound { .. } => io::ErrorKind::NotFound,
        Error::AlreadyExists { .. } => io::ErrorKind::AlreadyExists,
        // The object changed after it was opened.
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

/// Returns whether the store rejected the operation without sending a request.
pub(super) fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::NotSupported { .. } | Error::NotImplemented { .. } | Error::InvalidPath { .. }
    )
}
