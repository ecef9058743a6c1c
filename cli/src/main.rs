//! The `tinderbox` command. It has arguments, messages and tables. Checkpoint operations are implemented in
//! `tinderbox_checkpoint::tools`, schedules in `tinderbox_schedule` and plans in `tinderbox_planner`.
//!
//! All commands have the same conventions: `-o` sets the file of the output, other flags set its format, and `--json` prints
//! one object. [`outcome`] has the exit codes.

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

use anyhow::ensure;
use clap_complete::{Generator, Shell};

use arguments::{Arguments, Group};
use outcome::Outcome;
use terminal::Output;

fn main() -> ExitCode {
    // A memory limit on the command line is a limit of the process.
    tinderbox_memory::return_freed_blocks();
    let ended = Arguments::read(std::env::args_os()).map_or_else(Ok, run);
    let outcome = ended.unwrap_or_else(|error| {
        // The reader of the output, such as `head`, has closed the pipe.
        if !outcome::is_broken_pipe(&error) {
            terminal::say_error(&error);
        }
        Outcome::of(&error)
    });
    outcome.into()
}

fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
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
        Group::Launch(flags) => launch::launch(flags, &mut out),
        #[cfg(unix)]
        Group::BecomeRank(flags) => launch::become_rank(flags),
        Group::Completions { shell } => complete(*shell, &mut out),
    };
    let finished = out.finish(outcome.is_err());
    outcome.and_then(|outcome| finished.map(|()| outcome))
}

/// Prints the completions for a shell.
fn complete(shell: Shell, out: &mut Output) -> anyhow::Result<Outcome> {
    ensure!(!out.json, "completions have no JSON form: leave out --json");
    let mut command = arguments::command().bin_name("tinderbox");
    command.build();
    shell.try_generate(&command, out)?;
    Ok(Outcome::Done)
}
