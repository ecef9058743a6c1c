//! The command line.

use std::ffi::OsString;

use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind};
use clap_complete::Shell;

#[cfg(unix)]
use crate::launch;
use crate::outcome::{EXIT_CODES, Outcome};
use crate::terminal::{OutputFlags, joined_while, say};
use crate::{calibrate, ckpt, model, plan, run, schedule};

/// Tools for Tinderbox: Burn models built in pipeline stages, with sharded checkpoints
#[derive(Parser, Debug)]
#[command(name = "tinderbox", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) group: Group,
    #[command(flatten)]
    pub(crate) output: OutputFlags,
}

/// The command groups.
#[derive(Subcommand, Debug)]
pub(crate) enum Group {
    /// List, show, verify, compare, copy and remove checkpoints
    #[command(subcommand)]
    Ckpt(ckpt::Command),
    /// Initialize, convert and estimate models without their code
    #[command(subcommand)]
    Model(model::Command),
    /// List, draw, verify and find pipeline schedules
    #[command(subcommand)]
    Schedule(schedule::Command),
    /// Look at plan files and compare them
    #[command(subcommand)]
    Plan(plan::Command),
    /// Compare training runs
    #[command(subcommand)]
    Run(run::Command),
    /// Measure this machine, for plans that target it
    Calibrate(calibrate::Flags),
    /// Start a program as the ranks of a world, on this machine and others
    #[cfg(unix)]
    Launch(launch::Flags),
    /// Become the program of a rank; `launch` starts it
    #[cfg(unix)]
    #[command(hide = true)]
    BecomeRank(launch::RankFlags),
    /// Print the completions of these commands for a shell
    Completions { shell: Shell },
}

impl Arguments {
    /// Parses the command line.
    ///
    /// # Errors
    ///
    /// Returns the outcome, after printing the help or a one-line error.
    pub(crate) fn read(
        arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, Outcome> {
        let matches = command().try_get_matches_from(arguments);
        let read = matches.and_then(|matches| Self::from_arg_matches(&matches));
        read.map_err(|error| {
            let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
            match error.use_stderr() && !is_help {
                true => say("error", &wrong(&error.to_string())),
                // A failure to print the help is ignored.
                false => drop(error.print()),
            }
            match error.use_stderr() {
                true => Outcome::WrongUse,
                false => Outcome::Done,
            }
        })
    }
}

/// Examples of all commands, one per line.
const EXAMPLES: &str = include_str!("examples.txt");

/// Returns all commands. The help of each ends with its examples and the exit codes.
pub(crate) fn command() -> Command {
    with_help(Arguments::command(), "tinderbox")
}

fn with_help(command: Command, name: &str) -> Command {
    let mut help = EXIT_CODES.to_owned();
    if !command.has_subcommands() {
        let lines = EXAMPLES.lines().filter(|l| l.contains(&format!("{name} ")));
        let lines: String = lines.map(|line| format!("\n  {line}")).collect();
        help = format!("Examples:{lines}\n\n{help}");
    }
    command.after_help(help).mut_subcommands(|inner| {
        let name = format!("{name} {}", inner.get_name());
        with_help(inner, &name)
    })
}

/// Joins the lines of clap's error message.
fn wrong(text: &str) -> String {
    let is_of_help =
        |line: &str| line.starts_with("Usage:") || line.starts_with("For more information");
    let text = joined_while(text, |line| !is_of_help(line));
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    format!("{text} (see --help)")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the commands without subcommands, with their full names.
    fn leaves(command: &Command, name: &str) -> Vec<(String, Command)> {
        let subcommands = command.get_subcommands();
        let all = subcommands.flat_map(|c| leaves(c, &format!("{name} {}", c.get_name())));
        match command.has_subcommands() {
            _ if command.is_hide_set() => Vec::new(),
            true => all.collect(),
            false => vec![(name.to_owned(), command.clone())],
        }
    }

    #[test]
    fn the_arguments_are_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn every_example_of_the_help_is_a_valid_command() {
        let leaves = leaves(&command(), "tinderbox");
        let names: Vec<&String> = leaves.iter().map(|(name, _)| name).collect();
        assert_eq!(leaves.len(), 24, "{names:?}");
        for (name, leaf) in leaves {
            let help = leaf.get_after_help().unwrap().to_string();
            assert!(help.ends_with(EXIT_CODES), "{name}\n{help}");
            let lines = help.lines().filter(|line| line.starts_with("  tinderbox "));
            let examples = lines.map(|line| line.trim_start().split("  ").next().unwrap());
            let mut count = 0;
            for example in examples {
                let piped = example.split(" | ").filter(|c| c.starts_with("tinderbox "));
                for one in piped.clone() {
                    // Without the file that a shell writes.
                    let one = one.split(" > ").next().unwrap();
                    let parsed = command().try_get_matches_from(one.split(' '));
                    assert!(parsed.is_ok(), "{one}: {}", parsed.unwrap_err());
                }
                count += piped.filter(|c| c.starts_with(&format!("{name} "))).count();
            }
            assert!(count > 0, "{name} has no example");
        }
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
            (&["-q", "-v", "ckpt", "ls", "a"], "cannot be used with"),
        ] {
            let all = [&["tinderbox"][..], arguments].concat();
            let error = command().try_get_matches_from(all).unwrap_err();
            let found = wrong(&error.to_string());
            assert!(found.contains(expected), "{arguments:?}: {found}");
            assert!(!found.contains('\n'), "{found}");
        }
    }
}
