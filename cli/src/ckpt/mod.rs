//! `tinderbox ckpt`: checkpoints.

mod command;
mod cp;
mod diff;
mod export;
mod gc;
mod inspect;
mod ls;
mod place;
mod plan;
mod reshard;
mod rm;
mod saved;
mod verify;

pub(crate) use command::Command;
pub(crate) use export::rename;
pub(crate) use place::open_weights;
pub(crate) use saved::Saved;
