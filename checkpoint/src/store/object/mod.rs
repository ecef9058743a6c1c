//! Checkpoints in a bucket: objects by name, without directories, renames and locks.
//!
//! ```text
//! run/                                        what is there, and what it stands for
//!   .attempt-100-ID/attempt.json              the marker, while the attempt is not published
//!   .attempt-100-ID/model-rank-00000...       the files, from the attempt on until they are removed
//!   .attempt-100-ID/manifest.json             a copy, written before
//!   step-00000100/manifest.json               the one instant: a conditional write
//! ```

mod address;
mod bucket;
mod outcome;
mod put;
mod read;
mod tasks;
mod write;

pub use address::BucketError;
pub use bucket::BucketStore;
