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

/// What a stage has done with its gradients and parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// Gradients are added.
    Adding,
    /// The gradients of this replica are complete.
    Reduced,
    /// The gradients of all replicas are summed.
    Summed,
    /// The parameters are updated; of several replicas, each has updated its part.
    Updated,
    /// What the other replicas have updated is there.
    Gathered,
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
    pub(super) progress: Progress,
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
            progress: Progress::Adding,
        }
    }

    /// The number of micro-batches that have updated a running state.
    pub(super) fn advanced(&self, position: usize) -> usize {
        self.advanced.get(&position).copied().unwrap_or(0)
    }
}
