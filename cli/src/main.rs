//! The `tinderbox` command. It has arguments, messages and tables. Checkpoint operations are implemented in
//! `tinderbox_checkpoint::tools`, schedules in `tinderbox_schedule` and plans in `tinderbox_planner`.
//!
//! All commands have the same conventions: `-o` sets the file of the output, other flags set its format, and `--json` prints
//! one object. [`arguments`] has every command, and [`outcome`] the exit codes.

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

use arguments::Arguments;
use outcome::Outcome;

fn main() -> ExitCode {
    // A memory limit on the command line is a limit of the process.
    tinderbox_memory::return_freed_blocks();
    let ended = Arguments::read(std::env::args_os()).map_or_else(Ok, run);
    let outcome = ended.unwrap_or_else(|error| {
        // The reader of the output, such as `head`, has closed the pipe.
        if !outcome::is_broken_pipe(&error) {
            terminal::say("error", &format!("{error:#}"));
        }
        Outcome::of(&error)
    });
    outcome.0.into()
}

fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let Arguments { group, mut output } = arguments;
    output.print_events();
    let outcome = group.run(&mut output);
    let finished = output.finish(outcome.is_err());
    outcome.and_then(|outcome| finished.map(|()| outcome))
}
