//! `tinderbox ckpt`: checkpoints.

mod check;
mod command;
mod copy;
mod inspect;
mod place;
mod remove;

pub(crate) use command::Command;
pub(crate) use copy::{Saved, rename};
pub(crate) use place::{Weights, open_weights};
