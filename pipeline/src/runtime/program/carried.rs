//! The carried tensors of programs, and their values on a stage.

use std::collections::{BTreeSet, HashMap};

use tinderbox_fake::DynTensor;

use crate::batch::Leaf;
use crate::cut::{Binding, StagePrograms};
use crate::schedule::{Compute, StageIndex};
use crate::trace::{Given, JointGraph};

/// The carry of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundCarry {
    pub(crate) number: u64,
    /// Whether the values come from the batch.
    pub(crate) is_first: bool,
}

/// The carried tensors of a program, in the order of the batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct CarriedTensors(pub(crate) Vec<CarriedTensor>);

/// A carried tensor of a program.
#[derive(Clone, Debug)]
pub(crate) struct CarriedTensor {
    /// Its position in the batch.
    position: usize,
    pub(crate) leaf: Leaf,
    /// The stages that read it.
    pub(crate) readers: BTreeSet<StageIndex>,
    /// The stages that have its new value.
    pub(crate) keepers: BTreeSet<StageIndex>,
}

impl CarriedTensors {
    pub(crate) fn of(joint: &JointGraph, stages: &[StagePrograms]) -> Self {
        let tensors = joint.carried().keys().map(|position| {
            let (mut readers, mut keepers) = (BTreeSet::new(), BTreeSet::new());
            for (index, programs) in stages.iter().enumerate() {
                let Some(phase) = programs.phase(Compute::Forward) else {
                    continue;
                };
                let input = Binding::Given(Given::Input(*position));
                if phase.inputs.contains(&input) {
                    readers.insert(StageIndex::new(index));
                }
                if phase.carried.contains(position) {
                    keepers.insert(StageIndex::new(index));
                }
            }
            CarriedTensor {
                position: *position,
                leaf: joint.inputs()[*position].leaf.clone(),
                readers,
                keepers,
            }
        });
        Self(tensors.collect())
    }

    /// The index, among the carried tensors, of the tensor at a position of the batch.
    pub(crate) fn index_of(&self, position: usize) -> Option<usize> {
        self.0.binary_search_by_key(&position, |t| t.position).ok()
    }
}

/// The carried values that a stage holds, by their carry, micro-batch and index among the carried tensors.
pub(crate) type CarriedValues = HashMap<(u64, usize, usize), DynTensor>;
