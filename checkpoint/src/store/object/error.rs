//! Errors of opening a bucket.

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
