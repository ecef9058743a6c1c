//! The commands on models.

use clap::Subcommand;

use super::{estimate, save};
use crate::{outcome::Outcome, terminal::Output};

/// The model commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Save the initial parameters of a recorded model as a checkpoint, computed from a seed
    Init(save::InitFlags),
    /// Save parameters of plain safetensors or burnpack files, or of another checkpoint, as a checkpoint: cast, renamed, for
    /// any number of ranks
    Convert(save::ConvertFlags),
    /// Estimate the memory that a model needs for inference and training; reads headers only
    Estimate(estimate::Flags),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(&self, out: &mut Output) -> anyhow::Result<Outcome> {
        match self {
            Self::Init(flags) => save::init(flags, out),
            Self::Convert(flags) => save::convert(flags, out),
            Self::Estimate(flags) => estimate::run(flags, out),
        }
    }
}
