//! One program of a stage, bound to where its inputs come from and where its outputs go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tinderbox_deferred::{Program, ProgramError};
use tinderbox_fake::{NodeId, ValueId};

use super::Parts;
use super::takes::{Taken, Takes};
use crate::trace::JointGraph;

/// Where an input of a program comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// The parameter at a position of the table.
    Parameter(usize),
    /// The tensor at a position of the batch.
    Input(usize),
    /// The weight of the micro-batch.
    Weight,
    /// The constant at a position.
    Constant(usize),
    /// A value of the micro-batch: received, or kept from an earlier program.
    Value(ValueId),
}

/// One program of a stage, with where its inputs come from and where its outputs go.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) program: Arc<Program>,
    /// Its operations, in recorded order.
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) inputs: Vec<Binding>,
    /// Values of the micro-batch that it makes, and how often each is taken later: by messages, by
    /// the backward, by the driver.
    pub(crate) outputs: Vec<(ValueId, Takes)>,
    /// Gradients that it makes, behind the outputs: positions in the table.
    pub(crate) gradients: Vec<usize>,
}

/// Tells where inputs come from.
pub(super) struct Sources<'a> {
    given: BTreeMap<ValueId, Binding>,
    taken: &'a Taken,
    /// Values that depend on constants only, in order.
    pub(super) constants: Vec<ValueId>,
}

impl<'a> Sources<'a> {
    pub(super) fn new<'p>(
        joint: &JointGraph,
        taken: &'a Taken,
        programs: impl IntoIterator<Item = &'p Parts>,
    ) -> Self {
        let mut given = BTreeMap::from([(joint.weight(), Binding::Weight)]);
        for (index, input) in joint.inputs().iter().enumerate() {
            given.insert(input.value, Binding::Input(index));
        }
        // Clones share a value: the first holds it.
        for (index, value) in joint.parameters().iter().enumerate().rev() {
            given.insert(*value, Binding::Parameter(index));
        }
        let reads: BTreeSet<ValueId> = programs
            .into_iter()
            .flat_map(|parts| parts.reads.iter().copied())
            .collect();
        let is_constant = |value: &ValueId| !given.contains_key(value) && !taken.is_value(*value);
        let constants = reads.into_iter().filter(is_constant).collect();
        Self {
            given,
            taken,
            constants,
        }
    }

    fn of(&self, value: ValueId) -> Binding {
        if let Some(binding) = self.given.get(&value) {
            return *binding;
        }
        if self.taken.is_value(value) {
            return Binding::Value(value);
        }
        let place = self.constants.binary_search(&value);
        Binding::Constant(place.expect("every other read is a constant"))
    }

    /// Builds a program for its outputs and gradients.
    pub(super) fn phase(
        &self,
        joint: &JointGraph,
        parts: &Parts,
        outputs: Vec<(ValueId, Takes)>,
        gradients: &[(usize, ValueId)],
    ) -> Result<Phase, ProgramError> {
        let inputs: Vec<ValueId> = parts.reads.iter().copied().collect();
        let made = outputs.iter().map(|(value, _)| *value);
        let values: Vec<ValueId> = made
            .chain(gradients.iter().map(|(_, value)| *value))
            .collect();
        let nodes = parts.nodes.iter().copied();
        Ok(Phase {
            program: Arc::new(Program::new(
                joint.graph(),
                nodes.clone(),
                &inputs,
                &values,
                joint.keys(),
            )?),
            nodes: nodes.collect(),
            inputs: inputs.iter().map(|value| self.of(*value)).collect(),
            outputs,
            gradients: gradients.iter().map(|(position, _)| *position).collect(),
        })
    }
}
