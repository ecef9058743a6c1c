//! Operations on whole checkpoints: compare two, copy, reshard for another number of ranks, convert plain `safetensors` files
//! and export to them.
//!
//! All operations read blocks, or pieces of 8 MiB, for tensors of any size, and check the digest of every byte of a checkpoint.

mod convert;
mod diff;
mod division;
mod error;
mod export;
mod rate;
mod save;

pub use convert::{ConvertOptions, CopyOptions, ReshardOptions, convert, copy, reshard};
pub use diff::{Diff, Difference, ScalarDifference, TensorDifference, ValueDifference, diff};
pub use division::{TensorSplit, split_state_name};
pub use error::ToolError;
pub use export::{ExportFormat, ExportLayout, ExportOptions, Exported, export, export_tensors};
pub use rate::{ReadRate, read_rate};
pub use save::{SaveOptions, save_tensors};
