//! `tinderbox plan`: plan files.

mod command;
mod diff;
mod file;
mod show;

pub(crate) use command::Command;
