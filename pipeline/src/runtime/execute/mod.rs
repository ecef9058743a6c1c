//! Executes the actions of a rank.
//!
//! `on_rank` is the host of the interpreter. `exchange` sums gradients and their norms. `serve` is the thread of the rank,
//! which runs lists.

mod exchange;
mod on_rank;
mod serve;

pub(crate) use serve::{RankCall, RankRequest, run_rank};
