//! Arguments of the commands that save a model.

use burn::tensor::DType;
use clap::{Args, ValueEnum};
use tinderbox_checkpoint::CheckpointMeta;
use tinderbox_checkpoint::tools::{Cut, SaveOptions};
use tinderbox_planner::MemoryBudget;

use crate::ckpt::Saved;

/// The dtypes of float parameters.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum FloatType {
    F64,
    F32,
    F16,
    Bf16,
}

impl FloatType {
    pub(super) fn burn(self) -> DType {
        match self {
            Self::F64 => DType::F64,
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
        }
    }
}

/// How a model is saved.
#[derive(Args, Debug)]
pub(super) struct SaveFlags {
    /// Cast float parameters to this dtype, rounded to nearest
    #[arg(long, value_enum)]
    pub(super) dtype: Option<FloatType>,
    /// Number of ranks to balance whole tensors over, 1 to 65536
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=65_536)
    )]
    ranks: u32,
    /// Cut tensors with at least N rows into N boxes of rows, instead of assigning whole tensors to ranks
    #[arg(long)]
    rows: bool,
    /// Use at most this much memory for the whole process, such as 2GiB: fewer files are written at a time
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    #[command(flatten)]
    pub(super) saved: Saved,
}

/// Parses a number of bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(MemoryBudget::Bytes(bytes)) => Ok(bytes),
        Ok(_) => Err("it is no number of bytes".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl SaveFlags {
    pub(super) fn options(&self) -> SaveOptions {
        SaveOptions {
            cut: match self.rows {
                true => Cut::Rows,
                false => Cut::Whole,
            },
            memory_bytes: self.memory,
        }
    }

    pub(super) fn meta(&self, step: u64) -> CheckpointMeta {
        CheckpointMeta {
            replace: self.saved.replace,
            ..CheckpointMeta::new(step, self.ranks)
        }
    }
}
