//! What one program consists of, before it is built.

use std::collections::BTreeSet;

use tinderbox_fake::{NodeId, ValueId};

use crate::trace::{JointGraph, Role, Roles};

/// Operations, what they read and what is asked of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    /// Its operations, in recorded order.
    pub(super) nodes: BTreeSet<NodeId>,
    /// Values that it reads and does not make, constants left out.
    pub(super) reads: BTreeSet<ValueId>,
    /// Values that are asked of it beside those that others read.
    pub(super) targets: BTreeSet<ValueId>,
}

impl Parts {
    /// Adds the operations that are made again for this program, and lists what it reads.
    pub(super) fn close(&mut self, joint: &JointGraph, roles: &Roles) {
        let graph = joint.graph();
        let placed: Vec<NodeId> = self.nodes.iter().copied().collect();
        let mut wanted: Vec<ValueId> = placed
            .iter()
            .flat_map(|id| graph.node(*id).inputs().iter().copied())
            .chain(self.targets.iter().copied())
            .collect();
        let given = given(joint);
        self.reads.clear();
        while let Some(value) = wanted.pop() {
            let Some(producer) = graph.value(value).producer else {
                continue;
            };
            if self.nodes.contains(&producer) && !given.contains(&value) {
                continue;
            }
            let again = matches!(
                roles.of_node(producer),
                Role::Recomputable | Role::BackwardLocal
            );
            if again && !given.contains(&value) {
                self.nodes.insert(producer);
                wanted.extend(graph.node(producer).inputs());
            } else {
                self.reads.insert(value);
            }
        }
    }

    /// Values that its operations make.
    pub(super) fn made(&self, joint: &JointGraph) -> BTreeSet<ValueId> {
        let outputs = self
            .nodes
            .iter()
            .map(|id| joint.graph().node(*id).outputs());
        outputs.flatten().copied().collect()
    }

    /// A backward that makes again what the stage's forward made: the forward then keeps nothing but
    /// what it reads from others.
    pub(super) fn with_forward(&self, joint: &JointGraph, roles: &Roles, forward: &Self) -> Self {
        let made = forward.made(joint);
        let wanted = self.reads.intersection(&made).copied();
        let mut all = self.clone();
        all.nodes
            .extend(slice(joint, &forward.nodes, wanted, |_| false));
        all.close(joint, roles);
        all
    }

    /// Divides a backward: what makes the values that are sent, and what makes the stage's gradients.
    pub(super) fn split(
        &self,
        joint: &JointGraph,
        roles: &Roles,
        sent: &BTreeSet<ValueId>,
        gradients: &BTreeSet<ValueId>,
    ) -> (Self, Self) {
        let mut input = Self {
            nodes: slice(joint, &self.nodes, sent.iter().copied(), |_| false),
            reads: BTreeSet::new(),
            targets: sent.clone(),
        };
        input.close(joint, roles);
        // What the first half has made is read, not made again, but for what is cheaper to make.
        let kept: BTreeSet<ValueId> = input
            .nodes
            .iter()
            .filter(|id| roles.of_node(**id) != Role::Recomputable)
            .flat_map(|id| joint.graph().node(*id).outputs().iter().copied())
            .collect();
        let is_kept = |value: &ValueId| kept.contains(value);
        let targets: BTreeSet<ValueId> = gradients.clone();
        let nodes = slice(joint, &self.nodes, targets.iter().copied(), is_kept);
        let weight = Self {
            reads: reads(joint, &nodes, &targets),
            nodes,
            targets,
        };
        (input, weight)
    }
}

/// Values that come from outside of all programs.
fn given(joint: &JointGraph) -> BTreeSet<ValueId> {
    let inputs = joint.inputs().iter().map(|input| input.value);
    let parameters = joint.parameters().iter().copied();
    parameters.chain(inputs).chain([joint.weight()]).collect()
}

/// The operations among `nodes` that values depend on, not looking past those that are available.
fn slice(
    joint: &JointGraph,
    nodes: &BTreeSet<NodeId>,
    wanted: impl Iterator<Item = ValueId>,
    at_hand: impl Fn(&ValueId) -> bool,
) -> BTreeSet<NodeId> {
    let graph = joint.graph();
    let given = given(joint);
    let mut found = BTreeSet::new();
    let mut wanted: Vec<ValueId> = wanted.collect();
    while let Some(value) = wanted.pop() {
        if at_hand(&value) || given.contains(&value) {
            continue;
        }
        let producer = graph.value(value).producer;
        if let Some(producer) = producer.filter(|id| nodes.contains(id))
            && found.insert(producer)
        {
            wanted.extend(graph.node(producer).inputs());
        }
    }
    found
}

/// What operations read and do not make, and targets that they do not make; constants left out.
fn reads(
    joint: &JointGraph,
    nodes: &BTreeSet<NodeId>,
    targets: &BTreeSet<ValueId>,
) -> BTreeSet<ValueId> {
    let graph = joint.graph();
    let given = given(joint);
    let inputs = nodes.iter().flat_map(|id| graph.node(*id).inputs());
    let from_outside = inputs.chain(targets).copied().filter(|value| {
        let producer = graph.value(*value).producer;
        producer.is_some_and(|id| given.contains(value) || !nodes.contains(&id))
    });
    from_outside.collect()
}
