//! The calls that a process may have to make again.

use std::sync::Arc;

use crate::runtime::driver::CallKind;

/// A call that may be repeated.
pub(crate) struct Entry<C> {
    /// The version that it was made with.
    version: u64,
    /// Whether it changes something.
    pub(crate) changes: bool,
    /// Its number, if all processes take part.
    pub(crate) number: Option<u64>,
    pub(crate) call: C,
}

/// The calls since the oldest version that a process may go back to.
pub(crate) struct CallLog<C> {
    entries: Vec<Arc<Entry<C>>>,
}

impl<C> CallLog<C> {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
        }
    }

    /// Adds a call, with the version after it and its number.
    pub(crate) fn add(&mut self, call: C, kind: CallKind, version: u64, number: u64) {
        self.entries.push(Arc::new(Entry {
            version: version - u64::from(kind.changes()),
            changes: kind.changes(),
            number: kind.is_of_all().then_some(number),
            call,
        }));
    }

    /// Drops the calls that changed nothing: every process has made them.
    pub(crate) fn drop_reads(&mut self) {
        self.entries.retain(|entry| entry.changes);
    }

    /// Drops the calls before a version.
    pub(crate) fn prune(&mut self, oldest: u64) {
        self.entries.retain(|entry| entry.version >= oldest);
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// The calls to make again from a version: those that changed something, and the last one of all processes if some have
    /// made fewer than this process.
    pub(crate) fn to_repeat(&self, version: u64, least: u64) -> Vec<Arc<Entry<C>>> {
        let due = self.entries.iter().filter(|entry| {
            let is_missing = entry.number.is_some_and(|number| number > least);
            entry.version >= version && (entry.changes || is_missing)
        });
        due.cloned().collect()
    }
}
