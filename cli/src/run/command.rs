//! The commands on training runs.

use clap::Subcommand;

use super::{diff, numerics};
use crate::{outcome::Outcome, terminal::Output};

/// The run commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Find the first step and the first value in which two runs differ, or the first operation in which two replays of a step
    /// differ; exit code 1 if there is one
    Diff(diff::Flags),
    /// Print a digest of what the processor and the C library of this machine compute, for each class of operations that is
    /// rounded differently on others, or compare it with another machine's
    Numerics(numerics::Flags),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(&self, out: &mut Output) -> anyhow::Result<Outcome> {
        match self {
            Self::Diff(flags) => diff::run(flags, out),
            Self::Numerics(flags) => numerics::run(flags, out),
        }
    }
}
