//! One program of a stage, bound to where its inputs come from and where its outputs go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tinderbox_deferred::{Program, ProgramError};
use tinderbox_fake::{NodeId, ValueId};

use super::parts::Parts;
use super::takes::{Taken, Takes};
use crate::schedule::Compute;
use crate::trace::{Given, JointGraph};

/// Where an input of a program comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// A parameter, a tensor of the batch or the weight.
    Given(Given),
    /// The constant at a position.
    Constant(usize),
    /// A value of the micro-batch: received, or kept from an earlier program.
    Value(ValueId),
}

impl Binding {
    /// The position of a parameter.
    pub fn parameter(self) -> Option<usize> {
        match self {
            Self::Given(Given::Parameter(position)) => Some(position),
            Self::Given(_) | Self::Constant(_) | Self::Value(_) => None,
        }
    }
}

/// One program of a stage, with where its inputs come from and where its outputs go.
#[derive(Clone, Debug)]
pub struct Phase {
    pub program: Arc<Program>,
    /// Its operations, in recorded order.
    pub nodes: Vec<NodeId>,
    pub inputs: Vec<Binding>,
    /// Values of the micro-batch that it makes, and how often each is taken later: by messages, by
    /// the backward, by the driver.
    pub outputs: Vec<(ValueId, Takes)>,
    /// Gradients that it makes, after the outputs: positions in the table.
    pub gradients: Vec<usize>,
    /// New values of running states that it makes, after the gradients: positions in the table.
    pub updates: Vec<usize>,
    /// New values of carried tensors that it makes, last: positions in the batch.
    pub carried: Vec<usize>,
}

impl Phase {
    /// The index of the operation after which each value is not used any more, except values that
    /// outlive the program.
    pub fn last_uses(&self, joint: &JointGraph) -> BTreeMap<ValueId, usize> {
        let mut last_uses = BTreeMap::new();
        for (index, id) in self.nodes.iter().enumerate() {
            let node = joint.graph().node(*id);
            // A value without readers is freed after the operation that computes it.
            let values = node.outputs().iter().chain(node.inputs());
            last_uses.extend(values.map(|value| (*value, index)));
        }
        for value in self.program.outputs() {
            last_uses.remove(&value);
        }
        last_uses
    }

    /// The maximum bytes that the program holds at a time of values that it computes and does not output.
    pub fn transient_bytes(&self, joint: &JointGraph) -> u64 {
        let graph = joint.graph();
        let last_uses = self.last_uses(joint);
        let (mut held, mut most) = (0_u64, 0);
        let mut freed = vec![0; self.nodes.len()];
        for (index, id) in self.nodes.iter().enumerate() {
            for value in graph.node(*id).outputs() {
                if let Some(last) = last_uses.get(value) {
                    let bytes = graph.value(*value).bytes();
                    held += bytes;
                    freed[*last] += bytes;
                }
            }
            most = most.max(held);
            held -= freed[index];
        }
        most
    }

    /// The maximum bytes that the program holds at a time, with all that it reads and outputs.
    pub fn peak_bytes(&self, joint: &JointGraph) -> u64 {
        let read = self.program.inputs().iter().copied();
        let held = joint.graph().bytes(read.chain(self.program.outputs()));
        held + self.transient_bytes(joint)
    }
}

/// The origins of the values that the programs of a stage read.
pub(super) struct Sources<'a> {
    joint: &'a JointGraph,
    taken: &'a Taken,
    /// Values that depend on constants only, in order.
    pub(super) constants: Vec<ValueId>,
}

impl<'a> Sources<'a> {
    pub(super) fn new(
        joint: &'a JointGraph,
        taken: &'a Taken,
        programs: [&Parts; Compute::ALL.len()],
    ) -> Self {
        let reads = programs.into_iter().flat_map(|parts| &parts.reads);
        let constants =
            reads.filter(|value| joint.given(**value).is_none() && !taken.is_value(**value));
        let constants: BTreeSet<ValueId> = constants.copied().collect();
        Self {
            joint,
            taken,
            constants: constants.into_iter().collect(),
        }
    }

    /// The origin of a value for a forward or a backward.
    fn of(&self, value: ValueId, is_forward: bool) -> Binding {
        let given = self.joint.given(value);
        let is_kept = self.taken.is_value(value);
        match given {
            // The backward reads a state as the forward read it.
            Some(given) if is_forward || !is_kept => return Binding::Given(given),
            _ if is_kept => return Binding::Value(value),
            _ => {}
        }
        let place = self.constants.binary_search(&value);
        Binding::Constant(place.expect("every other read is a constant"))
    }

    /// Builds a program for its outputs, for the gradients of some parameters, for the new values of some
    /// running states and for the new values of carried tensors.
    pub(super) fn phase(&self, compute: Compute, parts: &Parts) -> Result<Phase, ProgramError> {
        let (joint, outputs) = (self.joint, self.taken.outputs(compute));
        let is_forward = compute == Compute::Forward;
        let inputs: Vec<ValueId> = parts.reads.iter().copied().collect();
        let nodes: Vec<NodeId> = parts.nodes.iter().copied().collect();
        let mut values: Vec<ValueId> = outputs.iter().map(|(value, _)| *value).collect();
        let gradients = parts.gradients.iter();
        values.extend(gradients.filter_map(|at| joint.gradients()[*at]));
        values.extend(parts.updates.iter().map(|at| joint.updates()[at]));
        values.extend(parts.carried.iter().map(|at| joint.carried()[at]));
        let operations = nodes.iter().copied();
        let program = Program::new(joint.graph(), operations, &inputs, &values, joint.keys())?;
        let inputs = inputs.iter();
        Ok(Phase {
            program: Arc::new(program),
            nodes,
            inputs: inputs.map(|value| self.of(*value, is_forward)).collect(),
            outputs,
            gradients: parts.gradients.iter().copied().collect(),
            updates: parts.updates.iter().copied().collect(),
            carried: parts.carried.iter().copied().collect(),
        })
    }
}
