//! The `tinderbox` command. Checkpoint operations are implemented in `tinderbox_checkpoint::tools`, schedules
//! in `tinderbox_schedule` and plans in `tinderbox_planner`; this crate has arguments, messages and tables.
//!
//! Exit codes: 0 on success, 1 if something is damaged, differs or can't run, 2 for invalid arguments and all
//! other errors.

mod arguments;
mod calibrate;
mod ckpt;
mod outcome;
mod plan;
mod schedule;
mod terminal;

use std::{
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use arguments::{Arguments, Group};
use outcome::Outcome;

fn main() -> ExitCode {
    let arguments = match Arguments::read() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let outcome = match arguments.group {
        Group::Ckpt { command } => command.run(&mut out),
        Group::Schedule { command } => command.run(&mut out),
        Group::Plan { command } => command.run(&mut out),
        Group::Calibrate(flags) => calibrate::run(&flags, &mut out),
    };
    let flushed = out.flush().map_err(anyhow::Error::from);
    match outcome.and_then(|outcome| flushed.map(|()| outcome)) {
        Ok(outcome) => outcome.into(),
        Err(error) => {
            // The reader, such as `head`, has closed the pipe.
            if !outcome::is_broken_pipe(&error) {
                terminal::say_error(&error);
            }
            Outcome::Failed.into()
        }
    }
}
