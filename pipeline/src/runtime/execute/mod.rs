//! Executes the actions of a rank.
//!
//! The host of the executor is `on_rank`, with `exchange` of gradients and their norms; `list` runs a rank's list
//! with it, and `serve` is the rank's thread.

mod exchange;
mod list;

mod on_rank;
mod rank;
mod serve;

pub(crate) use serve::{RankRequest, Reply, run_rank};
