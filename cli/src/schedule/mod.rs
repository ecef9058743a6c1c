//! `tinderbox schedule`: schedules.

mod command;
mod given;

pub(crate) use command::Command;
