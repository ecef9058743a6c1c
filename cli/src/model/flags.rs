//! The arguments of `estimate`.

use std::path::PathBuf;

use burn::tensor::DType;
use clap::{Args, ValueEnum};
use tinderbox_ids::text::parse_bytes;
use tinderbox_schedule::ScheduleKind;

use super::save::float_types;
use crate::ckpt::parse_step;
use crate::schedule::OfNames;

/// Arguments of `estimate`.
#[derive(Args, Debug)]
pub(crate) struct EstimateFlags {
    /// Files of weights, a step directory, a run directory for its newest step, the file of a recorded model, or a plan file
    #[arg(value_name = "DIR_OR_FILE")]
    pub(super) from: PathBuf,
    /// Use this step of the run instead of the newest
    #[arg(long, value_name = "STEP", value_parser = parse_step)]
    pub(super) step: Option<u64>,
    /// The dtype of float parameters [default: their own]
    #[arg(long, value_parser = float_types(), ignore_case = true)]
    pub(super) dtype: Option<DType>,
    /// Mixed precision: float parameters in bf16, with master weights, gradients and the optimizer's state in f32
    #[arg(long, conflicts_with = "dtype")]
    pub(super) mixed: bool,
    /// The optimizer: its state is a multiple of the trainable parameters [default: adam, or the optimizer of the plan]
    #[arg(long, value_enum)]
    pub(super) optimizer: Option<Optimizer>,
    /// Number of ranks that share the parameters, as whole tensors [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) ranks: Option<u32>,
    /// Another schedule for a plan, by name or alias (`tinderbox schedule list`). This flag and the next two use the plan that
    /// was saved with a checkpoint
    #[arg(long, value_name = "NAME", value_parser = OfNames(str::parse::<ScheduleKind>), hide_possible_values = true)]
    pub(super) schedule: Option<ScheduleKind>,
    /// Another number of micro-batches for a plan, of the same size
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) micro_batches: Option<u32>,
    /// Also predict a pass of a plan over the model, streamed from a disk, with this memory for parameters and activations, such
    /// as 600MiB
    #[arg(long, alias = "memory", value_name = "SIZE", value_parser = parse_bytes)]
    pub(super) stream: Option<u64>,
}

/// The optimizers.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum Optimizer {
    /// No state
    Sgd,
    /// One value for each trainable value
    Momentum,
    /// Two values for each
    #[default]
    Adam,
    /// Two values for each
    #[value(name = "adamw")]
    AdamW,
}

impl Optimizer {
    /// Returns its name, and the number of values that it keeps for each trainable value.
    pub(super) const fn form(self) -> (&'static str, u64) {
        match self {
            Self::Sgd => ("sgd", 0),
            Self::Momentum => ("momentum", 1),
            Self::Adam => ("adam", 2),
            Self::AdamW => ("adamw", 2),
        }
    }
}

impl EstimateFlags {
    /// Returns whether only a plan has what was asked for.
    pub(super) fn need_plan(&self) -> bool {
        self.schedule.is_some() || self.micro_batches.is_some() || self.stream.is_some()
    }
}
