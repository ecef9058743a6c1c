//! The commands on schedules.

use std::io::Write;

use clap::Subcommand;

use super::{list, show};
use crate::outcome::Outcome;

/// The schedule commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Draw a schedule in the terminal, as SVG, or as a trace for Perfetto; exit code 1 if it can't run
    Show(show::Flags),
    /// List the named schedules, with their costs for a number of stages
    List(list::Flags),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        match self {
            Self::Show(flags) => show::run(flags, out),
            Self::List(flags) => list::run(flags, out),
        }
    }
}
