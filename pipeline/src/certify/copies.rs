//! The parameters that a stage holds, and the sums of its gradients.

use std::collections::BTreeMap;

use crate::cut::Layout;
use crate::schedule::StageIndex;

/// A value of a parameter within a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// The value at the beginning of the step.
    Before,
    /// The value after the update.
    After,
}

impl Version {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Before => "its value before the update",
            Self::After => "its value after the update",
        }
    }
}

/// The parameters of one stage, by position in the table.
#[derive(Debug)]
pub(super) struct Copies {
    pub(super) versions: BTreeMap<usize, Version>,
    /// The parameters that it owns, with the number of micro-batches that were added to the gradient of
    /// each.
    pub(super) added: BTreeMap<usize, usize>,
    /// The number of micro-batches that have updated each running state that it owns.
    pub(super) advanced: BTreeMap<usize, usize>,
    pub(super) is_reduced: bool,
    /// Whether the gradients of all replicas are summed.
    pub(super) is_summed: bool,
    pub(super) is_updated: bool,
    /// Whether what the other replicas have updated is there.
    pub(super) is_gathered: bool,
}

impl Copies {
    /// The parameters of a stage at the beginning of a step.
    pub(super) fn new(layout: &Layout, stage: StageIndex) -> Self {
        let (owned, copies) = (layout.owned(stage), layout.copies(stage));
        let held = owned.iter().chain(copies);
        Self {
            versions: held.map(|position| (*position, Version::Before)).collect(),
            added: owned.iter().map(|position| (*position, 0)).collect(),
            advanced: BTreeMap::new(),
            is_reduced: false,
            is_summed: false,
            is_updated: false,
            is_gathered: false,
        }
    }
}
