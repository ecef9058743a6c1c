//! One program of a stage with the origins of its inputs and the uses of its outputs, and the consumers of each value of a
//! micro-batch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tinderbox_deferred::{Program, ProgramError};
use tinderbox_fake::{NodeId, ValueId};

use super::parts::Parts;
use crate::schedule::{Compute, Edge};
use crate::trace::{Given, JointGraph};

/// The origin of an input of a program.
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

/// One program of a stage, with the origins of its inputs and the uses of its outputs.
#[derive(Clone, Debug)]
pub struct Phase {
    pub program: Arc<Program>,
    /// Its operations, in recorded order.
    pub nodes: Vec<NodeId>,
    pub inputs: Vec<Binding>,
    /// Values of the micro-batch that it computes, with their consumers: messages, the backward, the driver.
    pub outputs: Vec<(ValueId, Consumers)>,
    /// Gradients that it computes, after the outputs: positions in the table.
    pub gradients: Vec<usize>,
    /// New values of running states that it computes, after the gradients: positions in the table.
    pub updates: Vec<usize>,
    /// New values of carried tensors that it computes, last: positions in the batch.
    pub carried: Vec<usize>,
}

impl Phase {
    /// The index of the last operation that uses each value, except values that outlive the program.
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

    /// The maximum bytes that the program holds at a time, with its inputs and outputs.
    pub fn peak_bytes(&self, joint: &JointGraph) -> u64 {
        let read = self.program.inputs().iter().copied();
        joint.graph().bytes(read.chain(self.program.outputs())) + self.transient_bytes(joint)
    }
}

/// The number of consumers of a value, for a whole and for a split backward of its micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consumers {
    /// The consumers if the backward runs whole, as `B`.
    pub whole: usize,
    /// The consumers if it runs as `I` and `W`.
    pub split: usize,
}

impl Consumers {
    /// The number for a micro-batch.
    pub fn of(self, is_split: bool) -> usize {
        if is_split { self.split } else { self.whole }
    }

    fn add(&mut self, whole: usize, split: usize) {
        self.whole += whole;
        self.split += split;
    }
}

/// The values of a micro-batch that are consumed on a stage or sent from it, by the program that computes them.
pub(super) struct Consumed<'a> {
    joint: &'a JointGraph,
    /// Values of the forward, including named outputs that it only passes on.
    forward: BTreeMap<ValueId, Consumers>,
    /// Values of other stages.
    pub(super) messages: BTreeMap<ValueId, Consumers>,
    /// Values of `B` or `I`.
    backward: BTreeMap<ValueId, Consumers>,
    /// All values that the forward computes, and the running states that it reads. The backward gets the states with the values
    /// that the forward read.
    made_forward: BTreeSet<ValueId>,
    /// Values that depend on constants only, in order.
    pub(super) constants: Vec<ValueId>,
}

impl<'a> Consumed<'a> {
    /// Counts the consumers in the programs of a stage, in the order of [`Compute::ALL`], and in messages.
    pub(super) fn count(
        joint: &'a JointGraph,
        parts: [&Parts; 4],
        sends: &BTreeMap<Edge, Vec<ValueId>>,
        receives: &BTreeMap<Edge, Vec<ValueId>>,
    ) -> Self {
        let [forward, whole, input, weight] = parts;
        let received = receives.values().flatten();
        let messages = received.map(|value| (*value, Consumers::default()));
        let mut consumed = Self {
            joint,
            forward: BTreeMap::new(),
            messages: messages.collect(),
            backward: BTreeMap::new(),
            made_forward: forward.made(joint),
            constants: Vec::new(),
        };
        let states = joint.running().iter();
        let states = states.map(|position| joint.parameters()[*position]);
        let read = states.filter(|state| forward.reads.contains(state));
        consumed.made_forward.extend(read);
        for (edge, values) in sends {
            let made = match edge.from.compute {
                Compute::Forward => &mut consumed.forward,
                _ => &mut consumed.backward,
            };
            for value in values {
                made.entry(*value).or_default().add(1, 1);
            }
        }
        // The driver reads the loss and each named output once.
        let named = joint.outputs().iter().map(|(_, value)| *value);
        let results = named.chain(joint.loss());
        for value in results.filter(|value| forward.targets.contains(value)) {
            consumed.forward.entry(value).or_default().add(1, 1);
        }
        for value in &forward.reads {
            if let Some(consumers) = consumed.messages.get_mut(value) {
                consumers.add(1, 1);
            }
        }
        consumed.add_reads(&whole.reads, 1, 0);
        consumed.add_reads(&input.reads, 0, 1);
        // `I` passes the values that it computes to `W`, even if the forward has computed them before: a stage that recomputes
        // keeps no value that its forward computed.
        let made = input.made(joint);
        consumed.add_reads(weight.reads.difference(&made), 0, 1);
        for value in weight.reads.intersection(&made) {
            consumed.backward.entry(*value).or_default().add(0, 1);
        }
        let reads = parts.into_iter().flat_map(|parts| &parts.reads);
        let is_constant =
            |value: &&ValueId| joint.given(**value).is_none() && !consumed.is_value(**value);
        let constants: BTreeSet<ValueId> = reads.filter(is_constant).copied().collect();
        consumed.constants = constants.into_iter().collect();
        consumed
    }

    /// Counts the values of the forward and of messages that a backward program reads.
    fn add_reads<'v>(
        &mut self,
        reads: impl IntoIterator<Item = &'v ValueId>,
        whole: usize,
        split: usize,
    ) {
        for value in reads {
            if self.made_forward.contains(value) {
                self.forward.entry(*value).or_default().add(whole, split);
            } else if let Some(consumers) = self.messages.get_mut(value) {
                consumers.add(whole, split);
            }
        }
    }

    /// The values that a program computes for others.
    fn outputs(&self, compute: Compute) -> Vec<(ValueId, Consumers)> {
        let made = match compute {
            Compute::Forward => &self.forward,
            Compute::Backward | Compute::InputGradient => &self.backward,
            _ => return Vec::new(),
        };
        let made = made.iter().map(|(value, consumers)| (*value, *consumers));
        let is_forward = compute == Compute::Forward;
        let is_split = compute == Compute::InputGradient;
        let kept = made.filter(|(_, consumers)| is_forward || consumers.of(is_split) > 0);
        kept.collect()
    }

    /// Whether a value is available before the backward: the forward computed it, or it was received for the forward.
    pub(super) fn is_of_forward(&self, value: ValueId, forward: &Parts) -> bool {
        let is_received = self.messages.contains_key(&value) && forward.reads.contains(&value);
        is_received || self.made_forward.contains(&value)
    }

    /// Whether a value is kept with its micro-batch.
    pub(super) fn is_value(&self, value: ValueId) -> bool {
        self.made_forward.contains(&value)
            || self.messages.contains_key(&value)
            || self.backward.contains_key(&value)
    }

    /// The origin of a value for a forward or a backward.
    fn origin(&self, value: ValueId, is_forward: bool) -> Binding {
        let is_kept = self.is_value(value);
        match self.joint.given(value) {
            // The backward reads a state as the forward read it.
            Some(given) if is_forward || !is_kept => Binding::Given(given),
            _ if is_kept => Binding::Value(value),
            _ => {
                let place = self.constants.binary_search(&value);
                Binding::Constant(place.expect("every other read is a constant"))
            }
        }
    }

    /// Builds a program for its outputs, and for gradients and new values of running states and carried tensors.
    pub(super) fn phase(&self, compute: Compute, parts: &Parts) -> Result<Phase, ProgramError> {
        let (joint, outputs) = (self.joint, self.outputs(compute));
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
        let inputs = inputs.map(|value| self.origin(*value, is_forward));
        Ok(Phase {
            program: Arc::new(program),
            nodes,
            inputs: inputs.collect(),
            outputs,
            gradients: parts.gradients.iter().copied().collect(),
            updates: parts.updates.iter().copied().collect(),
            carried: parts.carried.iter().copied().collect(),
        })
    }
}
