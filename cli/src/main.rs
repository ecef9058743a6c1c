//! The `tinderbox` command. Checkpoint operations are implemented in `tinderbox_checkpoint::tools`, schedules
//! in `tinderbox_schedule` and plans in `tinderbox_planner`; this crate has arguments, messages and tables.
//!
//! One convention for all commands: `-o` is the file of the output, other flags are its format; `--json` prints
//! one object; [`outcome`] has the exit codes.

mod arguments;
mod calibrate;
mod ckpt;
#[cfg(unix)]
mod launch;
mod model;
mod outcome;
mod plan;
mod run;
mod schedule;
mod terminal;

use std::process::ExitCode;
#[cfg(unix)]
use std::{ffi::OsString, iter};

use clap_complete::{Generator, Shell};

use anyhow::bail;
use arguments::{Arguments, Group};
use outcome::Outcome;
use terminal::Output;

fn main() -> ExitCode {
    // The limits of memory on the command line are limits of the process.
    tinderbox_pages::return_freed_blocks();
    let ended = match Arguments::read(std::env::args_os()) {
        Ok(arguments) => run(arguments),
        Err(outcome) => Ok(outcome),
    };
    let outcome = ended.unwrap_or_else(|error| {
        // The reader, such as `head`, has closed the pipe.
        if !outcome::is_broken_pipe(&error) {
            terminal::say_error(&error);
        }
        Outcome::of(&error)
    });
    outcome.into()
}

fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    // The output of these two is the output of the ranks, whose threads write it.
    #[cfg(unix)]
    match &arguments.group {
        Group::Launch(_) => return launch::launch(),
        Group::Supervise { arguments } => return supervise(arguments),
        _ => {}
    }
    arguments.output.print_events();
    let mut out = Output::new(arguments.output);
    let outcome = match &arguments.group {
        Group::Ckpt(command) => command.run(&mut out),
        Group::Model(command) => command.run(&mut out),
        Group::Schedule(command) => command.run(&mut out),
        Group::Plan(command) => command.run(&mut out),
        Group::Run(command) => command.run(&mut out),
        Group::Calibrate(flags) => calibrate::run(flags, &mut out),
        #[cfg(unix)]
        Group::Launch(_) | Group::Supervise { .. } => Ok(Outcome::Done),
        #[cfg(unix)]
        Group::BecomeRank(flags) => launch::become_rank(flags),
        Group::Completions { shell } => complete(*shell, &mut out),
    };
    let finished = out.finish(outcome.is_err());
    outcome.and_then(|outcome| finished.map(|()| outcome))
}

/// Runs the ranks of a launcher with these arguments.
#[cfg(unix)]
fn supervise(arguments: &[OsString]) -> anyhow::Result<Outcome> {
    let program = OsString::from("tinderbox");
    let given = match Arguments::read(iter::once(&program).chain(arguments)) {
        Ok(given) => given,
        Err(outcome) => return Ok(outcome),
    };
    given.output.print_events();
    match &given.group {
        Group::Launch(flags) => launch::supervise(flags, given.output.json),
        _ => Ok(Outcome::WrongUse),
    }
}

/// Prints the completions for a shell.
fn complete(shell: Shell, out: &mut Output) -> anyhow::Result<Outcome> {
    if out.json {
        bail!("completions have no JSON form: leave out --json");
    }
    let mut command = arguments::command().bin_name("tinderbox");
    command.build();
    shell.try_generate(&command, out)?;
    Ok(Outcome::Done)
}
