//! `tinderbox schedule`: schedules.

mod command;
mod given;
mod list;
mod show;
mod times;

pub(crate) use command::Command;
