//! The command `tinderbox`. Its work on checkpoints is that of `tinderbox_checkpoint::tools`, its work on
//! schedules that of `tinderbox_schedule`, on plans that of `tinderbox_planner`; here are arguments, texts and tables.
//!
//! Exit codes: 0 when all is well, 1 when something is damaged, differs or can't run, 2 for wrong arguments and any
//! other error.

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
            // Whoever reads, `head` say, has seen enough.
            if !outcome::is_broken_pipe(&error) {
                terminal::say_error(&error);
            }
            Outcome::Failed.into()
        }
    }
}
