//! Passes over the stages of a model that does not fit in memory.
//!
//! `visits` finds which stage runs when, with its bytes; `pass` decides what stays in memory; `reader` reads ahead, from
//! the source, from `spill` in the memory of the host or in a file; `streaming` gives the stages of a rank their
//! values and takes them back.

#[expect(clippy::module_inception, reason = "the folder is of the type")]
mod pass;
mod reader;
mod spill;
mod streaming;
mod tier;

mod visits;

pub(crate) use pass::{Pass, Passes};
pub(crate) use streaming::Streaming;
