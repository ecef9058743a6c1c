//! The commands on schedules.

use std::io::Write;

use clap::Subcommand;

use super::{list, show};
use crate::outcome::Outcome;

/// What to do with schedules.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Draw a schedule: in the terminal, as SVG, as a trace for Perfetto; exit code 1 if it can't run
    Show(show::Flags),
    /// List the named schedules, with what each costs for a number of stages
    List(list::Flags),
}

impl Command {
    /// Does it.
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        match self {
            Self::Show(flags) => show::run(flags, out),
            Self::List(flags) => list::run(flags, out),
        }
    }
}
