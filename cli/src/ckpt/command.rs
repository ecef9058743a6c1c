//! The commands on checkpoints.

use clap::Subcommand;

use super::{cp, diff, export, gc, inspect, ls, plan, reshard, rm, verify};
use crate::{outcome::Outcome, terminal::Output};

/// The checkpoint commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// List the steps of a run: when they were saved, and whether manifest and file sizes are valid
    Ls(ls::Flags),
    /// Show the contents of a checkpoint
    Inspect(inspect::Flags),
    /// Read and check all data and report all damage; exit code 1 if there is any
    Verify(verify::Flags),
    /// Compare tensors and scalars of two checkpoints; exit code 1 if they differ
    Diff(diff::Flags),
    /// Copy a checkpoint to another run, in a directory or a bucket; the copy appears when it is complete
    Cp(cp::Flags),
    /// Save a checkpoint again for another number of ranks
    Reshard(reshard::Flags),
    /// Copy the parameters to a plain Hugging Face directory, or to a file of Burn
    Export(export::Flags),
    /// Print the pipeline plan that was saved with a checkpoint; exit code 1 if it has none
    Plan(plan::Flags),
    /// Show, and with --yes remove, old checkpoints and remains of killed saves
    Gc(gc::Flags),
    /// Show, and with --yes remove, one step directory, even without a valid manifest
    Rm(rm::Flags),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(&self, out: &mut Output) -> anyhow::Result<Outcome> {
        match self {
            Self::Ls(flags) => ls::run(flags, out),
            Self::Inspect(flags) => inspect::run(flags, out),
            Self::Verify(flags) => verify::run(flags, out),
            Self::Diff(flags) => diff::run(flags, out),
            Self::Cp(flags) => cp::run(flags, out),
            Self::Reshard(flags) => reshard::run(flags, out),
            Self::Export(flags) => export::run(flags, out),
            Self::Plan(flags) => plan::run(flags, out),
            Self::Gc(flags) => gc::run(flags, out),
            Self::Rm(flags) => rm::run(flags, out),
        }
    }
}
