//! Work on whole checkpoints: compare two, save one again for other ranks, copy to and from plain
//! `safetensors` files.
//!
//! All of it reads pieces of 8 MiB, whatever the size of the tensors, and checks the digest of every
//! byte that comes from a checkpoint.

mod assign;
mod diff;
mod error;
mod export;
mod import;
mod pieces;
mod reshard;
mod save;

pub use diff::{Diff, Difference, ScalarDifference, TensorDifference, ValueDifference, diff};
pub use error::ToolError;
pub use export::{ExportOptions, Exported, export};
pub use import::{ImportOptions, import};
pub use reshard::{Cut, ReshardOptions, reshard};
