//! The command line: every command with its arguments, and what runs it.

use std::error::Error;
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseIntError};
use std::path::PathBuf;

use anyhow::ensure;
use clap::error::{ContextKind, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::{Generator, Shell};

#[cfg(unix)]
use crate::launch;
use crate::outcome::{EXIT_CODES, Outcome};
use crate::terminal::{Output, joined_while, say};
use crate::{calibrate, ckpt, model, plan, run, schedule};

/// Tools for Tinderbox: Burn models built in pipeline stages, with sharded checkpoints
#[derive(Parser, Debug)]
#[command(name = "tinderbox", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) group: Group,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The command groups.
#[derive(Subcommand, Debug)]
pub(crate) enum Group {
    /// List, show, verify, compare, copy and remove checkpoints
    #[command(subcommand)]
    Ckpt(Ckpt),
    /// Initialize, convert and estimate models without their code
    #[command(subcommand)]
    Model(Model),
    /// List, draw, verify and find pipeline schedules
    #[command(subcommand)]
    Schedule(Schedule),
    /// Look at plan files and compare them
    #[command(subcommand)]
    Plan(Plan),
    /// Compare training runs
    #[command(subcommand)]
    Run(Run),
    /// Measure this machine, for plans that target it
    Calibrate(calibrate::Flags),
    /// Start a program as the ranks of a world, on this machine and others
    #[cfg(unix)]
    #[command(after_help = launch::EXIT_CODES)]
    Launch(launch::Flags),
    /// Become the program of a rank; `launch` starts it
    #[cfg(unix)]
    #[command(hide = true)]
    BecomeRank(launch::RankFlags),
    /// Print the completions of these commands for a shell
    Completions { shell: Shell },
}

/// The checkpoint commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Ckpt {
    /// List the steps of a run: when they were saved, and whether they are complete
    #[command(visible_alias = "list")]
    Ls(ckpt::LsFlags),
    /// Show the contents of a checkpoint: a summary and its modules, or with --all every tensor
    #[command(visible_alias = "show")]
    Inspect(ckpt::InspectFlags),
    /// Read and check all data and report all damage; exit code 1 if there is any
    Verify {
        /// Step directories, or run directories for all their steps, or URLs of either in buckets
        #[arg(required = true, value_name = "DIR")]
        dirs: Vec<PathBuf>,
    },
    /// Compare tensors and scalars of two checkpoints; exit code 1 if they differ
    Diff(ckpt::DiffFlags),
    /// Copy a checkpoint to another run, in a directory or a bucket; the copy appears when it is complete
    Cp {
        #[command(flatten)]
        from: ckpt::Chosen,
        #[command(flatten)]
        saved: ckpt::Saved,
    },
    /// Save a checkpoint again for another number of ranks
    Reshard(ckpt::ReshardFlags),
    /// Copy the parameters to a plain Hugging Face directory, or to a file for Burn
    Export(ckpt::ExportFlags),
    /// Print the pipeline plan that was saved with a checkpoint; exit code 1 if it has none
    Plan(ckpt::Chosen),
    /// Show, and with --yes remove, old checkpoints and remains of killed saves
    Gc(ckpt::GcFlags),
    /// Show, and with --yes remove, one step directory, even without a valid manifest
    Rm(ckpt::RmFlags),
}

/// The model commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Model {
    /// Save the initial parameters of a recorded model as a checkpoint, computed from a seed
    Init(model::InitFlags),
    /// Save parameters of plain safetensors or burnpack files, or of another checkpoint, as a checkpoint: cast, renamed, for
    /// any number of ranks
    Convert(model::ConvertFlags),
    /// Estimate the memory that a model needs for inference and training; reads headers only
    Estimate(model::EstimateFlags),
}

/// The schedule commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Schedule {
    /// List the named schedules, with their costs
    #[command(after_help = schedule::meanings())]
    List(schedule::Shape),
    /// Print a schedule: drawn, as SVG, as a trace for Perfetto, as lists or JSON; exit code 1 if it can't run
    #[command(after_help = schedule::meanings())]
    Show(schedule::ShowFlags),
    /// Report whether a schedule can run, or why not; exit code 1 if it can't
    Verify(schedule::Given),
    /// Find a schedule for times and memory limits; several stages of a rank are placed in a loop or in a V
    #[command(after_help = schedule::meanings())]
    Auto(schedule::AutoFlags),
}

/// The plan commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Plan {
    /// Show the plan of a file or of a checkpoint, as tables or program text
    Show(plan::ShowFlags),
    /// Print the differences between two plans; exit code 1 if there are any
    Diff(plan::DiffFlags),
}

/// The run commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Run {
    /// Find the first step and the first value in which two runs differ, or the first operation in which two replays of a step
    /// differ; exit code 1 if there is one
    Diff {
        /// The digests of a run: a file with the result of `Pipeline::digest` after each step, as a line of JSON. If a step was
        /// repeated after a resume, its last line counts. Steps of only one run are counted, and are not a difference. Or the
        /// digests of a replay: a line for each program. `-` is standard input
        #[arg(value_name = "A")]
        first: PathBuf,
        /// The digests of another run, or of another replay
        #[arg(value_name = "B")]
        second: PathBuf,
    },
    /// Print a digest of the numerics of the processor and the C library, for each class of operations that other machines may
    /// round differently, or compare it with the digest of another machine
    Numerics {
        /// The output of `run numerics --json` on another machine: names the classes that differ; exit code 1 if there is one.
        /// `-` is standard input
        #[arg(value_name = "OTHER.json")]
        other: Option<PathBuf>,
    },
}

impl Group {
    /// Runs the command.
    pub(crate) fn run(&self, out: &mut Output) -> anyhow::Result<Outcome> {
        match self {
            Self::Ckpt(command) => match command {
                Ckpt::Ls(flags) => ckpt::ls(flags, out),
                Ckpt::Inspect(flags) => ckpt::inspect(flags, out),
                Ckpt::Verify { dirs } => ckpt::verify(dirs, out),
                Ckpt::Diff(flags) => ckpt::diff(flags, out),
                Ckpt::Cp { from, saved } => ckpt::cp(from, saved, out),
                Ckpt::Reshard(flags) => ckpt::reshard(flags, out),
                Ckpt::Export(flags) => ckpt::export(flags, out),
                Ckpt::Plan(from) => ckpt::plan(from, out),
                Ckpt::Gc(flags) => ckpt::gc(flags, out),
                Ckpt::Rm(flags) => ckpt::rm(flags, out),
            },
            Self::Model(command) => match command {
                Model::Init(flags) => model::init(flags, out),
                Model::Convert(flags) => model::convert(flags, out),
                Model::Estimate(flags) => model::estimate(flags, out),
            },
            Self::Schedule(command) => match command {
                Schedule::List(shape) => schedule::list(shape, out),
                Schedule::Show(flags) => schedule::show(flags, out),
                Schedule::Verify(given) => schedule::verify(given, out),
                Schedule::Auto(flags) => schedule::auto(flags, out),
            },
            Self::Plan(command) => match command {
                Plan::Show(flags) => plan::show(flags, out),
                Plan::Diff(flags) => plan::diff(flags, out),
            },
            Self::Run(command) => match command {
                Run::Diff { first, second } => run::diff(first, second, out),
                Run::Numerics { other } => run::numerics(other.as_deref(), out),
            },
            Self::Calibrate(flags) => calibrate::run(flags, out),
            #[cfg(unix)]
            Self::Launch(flags) => launch::launch(flags, out),
            #[cfg(unix)]
            Self::BecomeRank(flags) => launch::become_rank(flags),
            Self::Completions { shell } => complete(*shell, out),
        }
    }
}

/// Prints the completions for a shell.
fn complete(shell: Shell, out: &mut Output) -> anyhow::Result<Outcome> {
    ensure!(!out.json, "completions have no JSON form: leave out --json");
    let mut command = command().bin_name("tinderbox");
    command.build();
    shell.try_generate(&command, out)?;
    Ok(Outcome::DONE)
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
                true => say("error", &wrong(&error)),
                // A failure to print the help is ignored.
                false => drop(error.print()),
            }
            match error.use_stderr() {
                true => Outcome::WRONG_USE,
                false => Outcome::DONE,
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
    if let Some(own) = command.get_after_help() {
        help = format!("{own}\n\n{help}");
    }
    if !command.has_subcommands() {
        let lines = EXAMPLES.lines().filter(|l| l.contains(&format!("{name} ")));
        let lines: String = lines.map(|line| format!("\n  {line}")).collect();
        help = format!("Examples:{lines}\n\n{help}");
    }
    // Where a value must follow, -1 is a value: the error then names its flag.
    let command = command.mut_args(|arg| {
        let is_flag = !arg.is_positional() && arg.get_action().takes_values();
        arg.allow_negative_numbers(is_flag)
    });
    command.after_help(help).mut_subcommands(|inner| {
        let name = format!("{name} {}", inner.get_name());
        with_help(inner, &name)
    })
}

/// Joins the lines of clap's error message.
fn wrong(error: &clap::Error) -> String {
    let is_of_help =
        |line: &str| line.starts_with("Usage:") || line.starts_with("For more information");
    let text = joined_while(&error.to_string(), |line| !is_of_help(line));
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let text = match error.source() {
        Some(cause) => text.replace(&cause.to_string(), &wrong_value(cause)),
        None => text.to_owned(),
    };
    // The tip to write a wrong flag after `--` helps with no command.
    let parts = text.split(" tip: ");
    let parts = parts.filter(|part| !part.starts_with("to pass '"));
    let text = misplaced(error).unwrap_or(parts.collect::<Vec<_>>().join("; "));
    format!("{text} (see --help)")
}

/// Returns the error of a `launch` without `--`, and of a destination without `--to`.
fn misplaced(error: &clap::Error) -> Option<String> {
    let usage = error.get(ContextKind::Usage)?.to_string();
    let found = error.get(ContextKind::InvalidArg)?.to_string();
    if error.kind() != ErrorKind::UnknownArgument || found.starts_with('-') {
        return None;
    }
    let program = usage.contains("-- <PROGRAM>").then(|| format!(
        "`{found}` is not an argument of launch: write the program and its arguments after `--`, as in `tinderbox launch \
         -n 2 -- {found}`"
    ));
    let to =
        format!("unexpected argument '{found}' found: a destination is written as `--to {found}`");
    program.or_else(|| usage.contains("--to <").then_some(to))
}

/// Returns why a value is invalid. The texts of the standard library and of clap are for programmers.
fn wrong_value(cause: &(dyn Error + 'static)) -> String {
    match cause.downcast_ref().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow) => return "the number is too large".to_owned(),
        Some(_) => return "expected a whole number".to_owned(),
        None => {}
    }
    let text = cause.to_string();
    let range = text.split_once(" is not in ");
    match range.and_then(|(value, range)| Some((value, range.split_once("..")?))) {
        Some((value, (least, most))) => match most.strip_prefix('=') {
            Some(most) => format!("{value} is not from {least} to {most}"),
            None => format!("{value} is less than {least}"),
        },
        None => text,
    }
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
            (
                &["plan", "show", "a", "--stage", "one"],
                "invalid value 'one' for '--stage <K>': expected a whole number (see --help)",
            ),
            (
                &["schedule", "list", "--ranks", "99999999999999999999"],
                "the number is too large",
            ),
            (
                &["schedule", "list", "--ranks", "5000"],
                "5000 is not from 1 to 4096",
            ),
            (
                &["ckpt", "gc", "a", "--keep-every", "0"],
                "0 is less than 1",
            ),
            (&["-q", "-v", "ckpt", "ls", "a"], "cannot be used with"),
            (
                &["plan", "show", "a", "--step", "-1"],
                "invalid value '-1' for '--step <STEP>': expected a whole number (see --help)",
            ),
            (
                &["schedule", "list", "--times", "-1,2,3"],
                "invalid value '-1,2,3' for '--times <F,I,W>': expected three whole numbers",
            ),
            (
                &["ckpt", "verify", "a", "-1"],
                "unexpected argument '-1' found (see --help)",
            ),
            (
                &["schedule", "list", "--rank", "2"],
                "unexpected argument '--rank' found; a similar argument exists: '--ranks' (see --help)",
            ),
            (
                &["ckpt", "cp", "a", "b"],
                "unexpected argument 'b' found: a destination is written as `--to b` (see --help)",
            ),
            (&["ckpt", "export", "a", "b"], "written as `--to b` (see"),
            #[cfg(unix)]
            (
                &["launch", "-n", "-1", "--", "train"],
                "invalid value '-1' for '--ranks <N>': -1 is ",
            ),
            #[cfg(unix)]
            (
                &["launch", "--nproc_per_node", "2", "train.py"],
                "as in `tinderbox launch -n 2 -- train.py` (see --help)",
            ),
            #[cfg(unix)]
            (
                &["launch", "-n", "2", "train", "--stages", "2"],
                "`train` is not an argument of launch: write the program and its arguments after `--`, as in `tinderbox launch \
                 -n 2 -- train` (see --help)",
            ),
            #[cfg(unix)]
            (
                &["launch", "-n", "2", "--rank", "2"],
                "unexpected argument '--rank' found",
            ),
        ] {
            let all = [&["tinderbox"][..], arguments].concat();
            let error = command().try_get_matches_from(all).unwrap_err();
            let found = wrong(&error);
            assert!(found.contains(expected), "{arguments:?}: {found}");
            assert!(!found.contains('\n'), "{found}");
        }
    }
}
