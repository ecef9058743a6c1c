//! `tinderbox ckpt`: checkpoints.

mod check;
mod copy;
mod diff;
mod inspect;
mod list;
mod place;
mod remove;
mod tensors;

pub(crate) use check::verify;
pub(crate) use copy::{
    ExportFlags, ReshardFlags, Saved, cp, export, in_own_words, rename, reshard,
};
pub(crate) use diff::{DiffFlags, diff, steps_of_both};
pub(crate) use inspect::{InspectFlags, inspect, plan, saved_plan};
pub(crate) use list::{LsFlags, ls};
pub(crate) use place::{Chosen, Weights, open_weights, parse_step, step_of};
pub(crate) use remove::{GcFlags, RmFlags, gc, rm};
