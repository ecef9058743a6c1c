//! `tinderbox run`: training runs.

mod command;
mod diff;
mod replays;

pub(crate) use command::Command;
