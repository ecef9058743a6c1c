//! `tinderbox run`: training runs.

mod command;
mod diff;

pub(crate) use command::Command;
