//! `tinderbox run`: training runs.

mod command;
mod diff;
mod numerics;
mod replays;

pub(crate) use command::Command;
