//! `tinderbox ckpt`: checkpoints.

mod check;
mod copy;
mod inspect;
mod place;
mod remove;

pub(crate) use check::{diff, verify};
pub(crate) use copy::{ExportFlags, ReshardFlags, Saved, cp, export, rename, reshard};
pub(crate) use inspect::{inspect, ls, plan};
pub(crate) use place::{Weights, open_weights};
pub(crate) use remove::{GcFlags, RmFlags, gc, rm};
