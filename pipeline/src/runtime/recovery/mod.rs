//! Continues without processes that were lost, from the last completed step, with the same bits.
//!
//! Values do not change, so a rank keeps a snapshot of its state by handles. While the next step runs, it sends the snapshot to
//! another process, its keeper. A pipeline also keeps the calls since the oldest version that it may go back to. When a
//! process is lost, the remaining processes regroup and choose the newest version with all its parts. They plan again, move
//! missing values, and repeat the calls since that version. Calls are deterministic, so they return the same results again.
//!
//! A joint call is a call of all processes.
//!
//! `settings` is public. `ledger` chooses the keepers, and has the snapshots and the calls of one process. `rollback` takes and
//! sends snapshots. `moving` moves them to the ranks that need them in a new plan. `restart` goes back after a loss.

mod ledger;
mod moving;
mod restart;
mod rollback;
mod settings;

pub(crate) use ledger::CallLog;
pub(crate) use rollback::Rollback;
pub use settings::Recovery;
pub(crate) use settings::{Replan, replan};
