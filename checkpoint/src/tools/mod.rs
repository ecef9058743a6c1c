//! Operations on whole checkpoints: compare two, copy, reshard for another number of ranks, export to and
//! import from plain `safetensors` files.
//!
//! All of them read blocks, or pieces of 8 MiB, whatever the size of the tensors, and check the digest of every
//! byte of a checkpoint.

mod assign;
mod copy;
mod diff;
mod error;
mod export;
mod import;
mod reshard;
mod save;

pub use copy::{CopyOptions, copy};
pub use diff::{Diff, Difference, ScalarDifference, TensorDifference, ValueDifference, diff};
pub use error::ToolError;
pub use export::{ExportFormat, ExportLayout, ExportOptions, Exported, export, export_tensors};
pub use import::{ImportOptions, import};
pub use reshard::{Cut, ReshardOptions, reshard};
