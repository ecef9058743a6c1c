//! `tinderbox ckpt`: checkpoints.

mod command;
mod cp;
mod diff;
mod export;
mod gc;
mod import;
mod inspect;
mod ls;
mod place;
mod plan;
mod reshard;
mod rm;
mod saved;
mod verify;

pub(crate) use command::Command;
