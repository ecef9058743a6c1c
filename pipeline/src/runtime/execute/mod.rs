//! Executes the actions of a rank.
//!
//! The host of the interpreter is `on_rank`, with `exchange` of gradients and their norms; `serve` is the rank's
//! thread, which runs lists.

mod exchange;

mod on_rank;

mod serve;

pub(crate) use serve::{RankCall, RankRequest, run_rank};
