//! What a rank has at one point in time, and the snapshots of other ranks in the memory of a process.

mod backups;
mod snapshot;

pub(crate) use backups::{Backups, KeptSnapshots, Part};
pub(crate) use snapshot::{Contents, Item, Name, Snapshot};
