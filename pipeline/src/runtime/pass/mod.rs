//! Passes over the stages of a model that does not fit in memory.
//!
//! `visits` finds when each stage runs, and its bytes. `pass` decides which values stay in memory. `reader` reads ahead
//! from the source or from `tiers`: the memory of the host and a file. `streaming` gives the stages of a rank their
//! values and removes them again.

#[expect(clippy::module_inception, reason = "the folder is of the type")]
mod pass;
mod reader;
mod streaming;
mod tiers;
mod visits;

pub(crate) use pass::{Pass, Passes};
pub(crate) use streaming::Streaming;
