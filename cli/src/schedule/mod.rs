//! `tinderbox schedule`: schedules.

mod command;
mod given;
mod shape;

pub(crate) use command::Command;
