//! Saving: every rank writes its files into a directory of the attempt, the coordinator publishes it.
//!
//! ```text
//! coordinator                                 rank (each)
//! begin: mkdir .attempt-STEP-ID, marker, lock
//!                          handle ->          write_rank: files, fsync
//!                                             part.tmp, fsync, rename to part
//! publish: wait for every part, prove
//!   index, manifest.tmp, fsync, rename
//!   remove parts, fsync directory
//!   rename directory to step-STEP             <- the one instant of the commit
//!   fsync run directory
//! ```
//!
//! Before that rename there is no checkpoint, after it there is a whole one.

mod attempt;
mod clean;
mod durable;
mod handle;
mod merge;
mod shard;

pub use attempt::{Attempt, CheckpointMeta};
pub use clean::{Cleaned, clean};
pub use handle::AttemptHandle;
pub use shard::SaveTensor;
