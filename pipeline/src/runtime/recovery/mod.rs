//! Continues without processes that were lost, from the last completed step, with the same bits.
//!
//! Values do not change, so a rank keeps a snapshot of its state by handles. While the next step runs, it sends the snapshot to
//! another process, its keeper. A pipeline also keeps the calls since the oldest version that it may go back to. When a
//! process is lost, those that are left regroup, choose the newest version of which every part is left, plan again, move what
//! is missing, and repeat the calls since then: they are deterministic, so they return what they have returned before.
//!
//! `settings` is public. `keepers` chooses where snapshots are kept, `ledger` is what one process has of them, and of the calls
//! to repeat, `rollback` takes and sends snapshots, `moving` brings them to where a new plan needs them, and `restart` goes back
//! after a loss.

mod keepers;
mod ledger;
mod moving;
mod restart;
mod rollback;
mod settings;

pub(crate) use ledger::CallLog;
pub(crate) use rollback::Rollback;
pub use settings::Recovery;
pub(crate) use settings::{Replan, replan};
