//! `tinderbox schedule`: schedules.

mod auto;
mod command;
mod form;
mod given;
mod list;
mod shape;
mod show;
mod verify;

pub(crate) use command::Command;
