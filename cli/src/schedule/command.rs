//! The commands on schedules.

use clap::Subcommand;

use super::{auto, list, show, verify};
use crate::{outcome::Outcome, terminal::Output};

/// The schedule commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// List the named schedules, with their costs
    List(list::Flags),
    /// Print a schedule: drawn, as SVG, as a trace for Perfetto, as lists or JSON; exit code 1 if it can't run
    Show(show::Flags),
    /// Report whether a schedule can run, or why not; exit code 1 if it can't
    Verify(verify::Flags),
    /// Find a schedule for times and memory limits; several stages of a rank are placed in a loop or in a V
    Auto(auto::Flags),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(&self, out: &mut Output) -> anyhow::Result<Outcome> {
        match self {
            Self::List(flags) => list::run(flags, out),
            Self::Show(flags) => show::run(flags, out),
            Self::Verify(flags) => verify::run(flags, out),
            Self::Auto(flags) => auto::run(flags, out),
        }
    }
}
