//! Saving: every rank writes its files into a directory of the attempt, the coordinator publishes it.
//!
//! ```text
//! coordinator                                 rank (each)
//! begin: mkdir .attempt-STEP-ID, marker, lock, plan
//!                          handle ->          write_rank: files, fsync
//!                                             part.tmp, fsync, rename to part
//! publish: wait for every part, validate
//!   index, remove parts
//!   manifest.tmp, fsync, rename
//!   fsync the attempt's directory
//!   rename directory to step-STEP             <- the commit
//!   fsync the run's directory
//! ```
//!
//! Before the rename to `step-STEP` there is no checkpoint, after it there is a complete checkpoint. To replace a step, the two
//! directories are exchanged instead.
//!
//! In a store without renames, the files stay in the directory of the attempt, together with a copy of the
//! manifest, and the commit is a conditional write of `step-STEP/manifest.json`.

mod attempt;
mod background;
mod clean;
mod handle;
mod merge;
mod meta;
mod replicas;
mod shard;
mod tensor;
mod wait;

pub use attempt::Attempt;
pub use background::Saving;
pub use clean::Cleaned;
pub use handle::AttemptHandle;
pub use meta::{CheckpointMeta, SaveSize};
pub use replicas::assign_writers;
pub use tensor::{RankSave, SaveData, SaveTensor, SavedPart};

pub(crate) use clean::{Action, Unlocked, clean, discard, remove_step, set_aside};
