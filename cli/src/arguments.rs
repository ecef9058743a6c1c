//! The command line.

use std::process::ExitCode;

use clap::{Parser, Subcommand, error::ErrorKind};

use crate::{calibrate, ckpt, outcome::Outcome, plan, schedule, terminal};

/// Tools for Tinderbox: Burn models built in pipeline stages, with sharded checkpoints
#[derive(Parser, Debug)]
#[command(name = "tinderbox", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) group: Group,
}

/// The command groups.
#[derive(Subcommand, Debug)]
pub(crate) enum Group {
    /// Look at, compare, copy and remove checkpoints
    Ckpt {
        #[command(subcommand)]
        command: ckpt::Command,
    },
    /// Draw, list and check pipeline schedules
    Schedule {
        #[command(subcommand)]
        command: schedule::Command,
    },
    /// Look at plan files and compare them
    Plan {
        #[command(subcommand)]
        command: plan::Command,
    },
    /// Measure this machine, for plans that target it
    Calibrate(calibrate::Flags),
}

impl Arguments {
    /// Parses the command line.
    ///
    /// # Errors
    ///
    /// Returns the exit code, after printing the help or a one-line error.
    pub(crate) fn read() -> Result<Self, ExitCode> {
        Self::try_parse().map_err(|error| match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                let asked = !error.use_stderr();
                // A failure to print the help is ignored.
                let _ = error.print();
                match asked {
                    true => Outcome::Fine.into(),
                    false => Outcome::Failed.into(),
                }
            }
            _ => {
                terminal::say("error", &wrong(&error.to_string()));
                Outcome::Failed.into()
            }
        })
    }
}

/// Joins the lines of clap's error message.
fn wrong(text: &str) -> String {
    let tells =
        |line: &&str| !line.starts_with("Usage:") && !line.starts_with("For more information");
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(tells)
        .filter(|line| !line.is_empty())
        .collect();
    let text = lines.join(" ");
    format!(
        "{} (see --help)",
        text.strip_prefix("error: ").unwrap_or(&text)
    )
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn invalid_arguments_are_reported_on_one_line() {
        for (arguments, expected) in [
            (
                &["ckpt", "reshard", "a", "--to", "b"][..],
                "the following required arguments were not provided: --ranks <N> (see --help)",
            ),
            (&["ckpt", "diff", "a"], "not provided: <SECOND>"),
            (&["ckpt", "melt"], "unrecognized subcommand 'melt'"),
            (
                &["schedule", "show", "1f1b", "--times", "1,2"],
                "expected three whole numbers",
            ),
            (
                &["ckpt", "reshard", "a", "--to", "b", "--ranks", "0"],
                "invalid value '0' for '--ranks <N>'",
            ),
            (
                &["ckpt", "inspect", "a", "--all", "--step", "1"],
                "cannot be used with",
            ),
        ] {
            let all = [&["tinderbox"][..], arguments].concat();
            let error = Arguments::try_parse_from(all).unwrap_err();
            let found = wrong(&error.to_string());
            assert!(found.contains(expected), "{arguments:?}: {found}");
            assert!(!found.contains('\n'), "{found}");
        }
    }
}
