//! The commands on checkpoints.

use std::io::Write;

use clap::Subcommand;

use super::{diff, export, gc, import, inspect, remove, reshard, verify};
use crate::outcome::Outcome;

/// The checkpoint commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Show the contents of a checkpoint
    Inspect(inspect::Flags),
    /// Read and check all data and report all damage; exit code 1 if there is any
    Verify(verify::Flags),
    /// Compare tensors and scalars of two checkpoints; exit code 1 if they differ
    Diff(diff::Flags),
    /// Save a checkpoint again for another number of ranks
    Reshard(reshard::Flags),
    /// Copy the parameters to a plain Hugging Face directory
    Export(export::Flags),
    /// Save plain safetensors files as a checkpoint
    Import(import::Flags),
    /// Show, and with --yes remove, old checkpoints and remains of killed saves
    Gc(gc::Flags),
    /// Show, and with --yes remove, one step directory, even without a valid manifest
    Remove(remove::Flags),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        match self {
            Self::Inspect(flags) => inspect::run(flags, out),
            Self::Verify(flags) => verify::run(flags, out),
            Self::Diff(flags) => diff::run(flags, out),
            Self::Reshard(flags) => reshard::run(flags, out),
            Self::Export(flags) => export::run(flags, out),
            Self::Import(flags) => import::run(flags, out),
            Self::Gc(flags) => gc::run(flags, out),
            Self::Remove(flags) => remove::run(flags, out),
        }
    }
}
