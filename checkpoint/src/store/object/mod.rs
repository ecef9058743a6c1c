//! Checkpoints in a bucket: named objects, without directories, renames and locks.
//!
//! ```text
//! run/                                        contents and purpose
//!   .attempt-100-ID/attempt.json              the marker, until the attempt is published
//!   .attempt-100-ID/model-rank-00000...       the files, from the attempt until their removal
//!   .attempt-100-ID/manifest.json             a copy, written before publication
//!   step-00000100/manifest.json               the publication: a conditional write
//! ```

mod bucket;
mod error;
mod file;
mod operations;
mod requests;

pub use bucket::BucketStore;
pub use error::BucketError;
