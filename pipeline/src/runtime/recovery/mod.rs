//! Continues without processes that were lost, from the last completed step, with the same bits.
//!
//! Values do not change, so a rank keeps a snapshot of its state by handles. While the next step runs, it sends the snapshot to
//! another process, its keeper. A pipeline also keeps the calls since the oldest version that it may go back to. When a
//! process is lost, those that are left regroup, choose the newest version of which every part is left, plan again, move what
//! is missing, and repeat the calls since then: they are deterministic, so they return what they have returned before.
//!
//! `settings` and `report` are public. `snapshot`, `backups` and `keepers` are what is kept and where, `ledger` what one
//! process has of it, `moving` brings it to where a new plan needs it, `calls` repeats calls, and `restart` is the order of it
//! all.

mod backups;
mod calls;
mod driver;
mod keepers;
mod ledger;
mod moving;
mod replan;
mod report;
mod restart;
mod settings;
mod snapshot;

pub(super) use backups::{Backups, Part};
pub(super) use calls::CallKind;
pub(super) use ledger::RecoveryState;
pub use report::Recovered;
pub use settings::Recovery;
