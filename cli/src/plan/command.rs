//! The commands on plan files.

use std::io::Write;

use clap::Subcommand;

use super::{diff, show};
use crate::outcome::Outcome;

/// What to do with plans.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Show a plan: as tables, as text of its programs, as a graph, as a page
    Show(show::Flags),
    /// Print what differs between two plans; exit code 1 if they differ
    Diff(diff::Flags),
}

impl Command {
    /// Does it.
    pub(crate) fn run(&self, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        match self {
            Self::Show(flags) => show::run(flags, out),
            Self::Diff(flags) => diff::run(flags, out),
        }
    }
}
