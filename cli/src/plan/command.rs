//! The commands on plan files.

use clap::Subcommand;

use super::{diff, show};
use crate::{outcome::Outcome, terminal::Output};

/// The plan commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Show a plan as tables, program text, a graph or a page
    Show(show::Flags),
    /// Print the differences between two plans; exit code 1 if there are any
    Diff(diff::Flags),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(&self, out: &mut Output) -> anyhow::Result<Outcome> {
        match self {
            Self::Show(flags) => show::run(flags, out),
            Self::Diff(flags) => diff::run(flags, out),
        }
    }
}
