//! Continues without processes that were lost, from the last completed step, with the same bits.
//!
//! Values do not change, so a rank keeps a snapshot of its state by handles. While the next step runs, it sends the snapshot to
//! another process, its keeper. A pipeline also keeps the calls since the oldest version that it may go back to. When a
//! process is lost, those that are left regroup, choose the newest version of which every part is left, plan again, move what
//! is missing, and repeat the calls since then: they are deterministic, so they return what they have returned before.
//!
//! `settings` is public. `keepers` chooses where snapshots are kept, `ledger` is what one process has of them, `recovering`
//! takes and sends them, `moving` brings them to where a new plan needs them, `restart` is the order after a loss, and `log`
//! has the calls to repeat.

mod keepers;
mod ledger;
mod log;
mod moving;
mod recovering;
mod replan;
mod restart;

mod settings;

pub(crate) use log::CallLog;
pub(crate) use recovering::{Planned, Recovering};
pub(crate) use replan::replan;
pub use settings::Recovery;
