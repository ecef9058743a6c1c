//! Errors of opening a bucket, and of requests.

use std::io;

use object_store::Error;

/// The reason why a bucket can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BucketError {
    /// The text is not a URL.
    #[error("not a bucket URL: use s3://bucket/run, gs://bucket/run or az://container/run")]
    Url {
        /// The cause.
        source: url::ParseError,
    },
    /// The URL contains a password or a possible signature, which error messages would disclose.
    #[error(
        "a bucket URL must not have a user, password or query: put credentials into the environment"
    )]
    Secret,
    /// The URL refers to a directory.
    #[error("{place} is a directory: use a local path instead of a URL")]
    Directory {
        /// The URL.
        place: String,
    },
    /// The crate was built without support for the service.
    #[error("{place} requires the feature `{feature}` of tinderbox-checkpoint: rebuild with it")]
    Feature {
        /// The URL.
        place: String,
        /// The feature of this crate.
        feature: &'static str,
    },
    /// The service can't be used, or is not supported.
    #[error("{place} can't be opened")]
    Open {
        /// The URL.
        place: String,
        /// The cause.
        source: Error,
    },
    /// The threads for requests can't be started.
    #[error("failed to start threads for requests to a bucket")]
    Threads {
        /// The cause.
        source: io::Error,
    },
}

/// Distinguishes errors of this crate from errors of a service.
pub(super) const STORE: &str = "bucket";

/// Converts an error to the kind that [`Store`](crate::store::Store) specifies, with the error itself as its
/// source.
pub(super) fn to_io(error: Error) -> io::Error {
    use io::ErrorKind as Kind;
    let kind = match &error {
        Error::NotFound { .. } => Kind::NotFound,
        Error::AlreadyExists { .. } => Kind::AlreadyExists,
        // The object changed after it was opened.
        Error::Precondition { .. } | Error::NotModified { .. } => Kind::StaleNetworkFileHandle,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Kind::PermissionDenied,
        Error::NotSupported { .. } | Error::NotImplemented { .. } => Kind::Unsupported,
        _ => Kind::Other,
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
