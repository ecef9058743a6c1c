//! `tinderbox ckpt`: checkpoints.

mod command;
mod diff;
mod export;
mod gc;
mod import;
mod inspect;
mod place;
mod remove;
mod reshard;
mod verify;

pub(crate) use command::Command;
