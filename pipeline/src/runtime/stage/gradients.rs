//! The gradients that a stage holds.

use std::collections::BTreeSet;

use tinderbox_fake::DynTensor;

use crate::sum::TreeSum;

/// The gradients of a stage.
#[derive(Debug)]
pub(super) struct Gradients {
    /// The owned parameters that do not train now.
    pub(super) frozen: BTreeSet<usize>,
    /// The sums of the gradients of this replica's micro-batches, by owned parameter.
    pub(super) sums: Vec<TreeSum<DynTensor>>,
    /// The complete gradients of the pieces that the stage updates.
    pub(super) complete: Vec<Option<DynTensor>>,
    /// New values of its pieces that are not whole parameters, until all of them are there.
    pub(super) updated_rows: Vec<Option<DynTensor>>,
    /// Gradients of its pieces in the last step, if the settings keep them; they need additional memory of their
    /// size.
    pub(super) kept: Option<Vec<Option<DynTensor>>>,
}

impl Gradients {
    /// No gradients yet, of so many parameters and pieces.
    pub(super) fn new(parameters: usize, pieces: usize, keeps: bool) -> Self {
        Self {
            frozen: BTreeSet::new(),
            sums: vec![TreeSum::default(); parameters],
            complete: vec![None; pieces],
            updated_rows: vec![None; pieces],
            kept: keeps.then(|| vec![None; pieces]),
        }
    }

    /// Drops the gradients of an unfinished step.
    pub(super) fn clear(&mut self) {
        self.sums.fill_with(TreeSum::default);
        self.complete.fill(None);
        self.updated_rows.fill(None);
    }

    /// The bytes of all that it holds for an update.
    pub(super) fn bytes(&self) -> u64 {
        let sums = self.sums.iter().flat_map(TreeSum::held);
        let held = sums.chain(self.complete.iter().flatten());
        held.map(DynTensor::bytes).sum()
    }
}
