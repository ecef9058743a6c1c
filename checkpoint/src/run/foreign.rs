//! Entries of a run's directory that are neither checkpoints nor made by this crate.

use std::sync::PoisonError;

use super::Run;
use crate::{
    LoadError,
    format::{
        parse_attempt_dir_name, parse_damaged_dir_name, parse_removed_dir_name, parse_step_dir_name,
    },
    store::{Found, FoundKind},
};

/// The begin of the names of steps.
const STEP: &str = "step-";

/// Returns the step of a directory, or of a link to one.
pub(super) fn step_of(found: &Found) -> Option<u64> {
    let step = parse_step_dir_name(&found.name);
    step.filter(|_| matches!(found.kind, FoundKind::Dir | FoundKind::Link))
}

/// Returns why an entry is neither a checkpoint nor made by this crate; `None` if it is one of both.
fn reason(found: &Found) -> Option<&'static str> {
    let name = &*found.name;
    let is_ours = parse_damaged_dir_name(name).is_some()
        || parse_attempt_dir_name(name).is_some()
        || parse_removed_dir_name(name).is_some();
    if is_ours || step_of(found).is_some() {
        return None;
    }
    Some(match name.starts_with(STEP) {
        true if parse_step_dir_name(name).is_some() => {
            "it has the name of a step, and is not a directory"
        }
        true => "it does not have the name of a step, such as step-00000100",
        false => "it is not part of the run",
    })
}

impl Run {
    /// Returns the entries of the run that are not understood, by name, each with the reason: neither steps, nor attempts, nor
    /// checkpoints that were [set aside](Self::set_aside). Nothing uses or removes them. A name that is not UTF-8 is lossy.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't be listed.
    pub fn foreign(&self) -> Result<Vec<(String, &'static str)>, LoadError> {
        let listing = self.list()?.into_iter();
        let foreign = listing.filter_map(|found| Some((reason(&found)?, found.name)));
        let mut foreign: Vec<_> = foreign.map(|(reason, name)| (name, reason)).collect();
        foreign.sort_unstable();
        Ok(foreign)
    }

    /// Emits a warning for each entry that could be taken for a step, once.
    pub(super) fn warn_of_foreign(&self, listing: &[Found]) {
        for found in listing.iter().filter(|found| found.name.starts_with(STEP)) {
            let Some(reason) = reason(found) else {
                continue;
            };
            let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
            if warned.insert(found.name.clone()) {
                let path = self.store.place(&found.name);
                tracing::warn!(path = %path.display(), reason, "this is not a checkpoint");
            }
        }
    }
}
