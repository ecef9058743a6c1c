//! The operations and values of one program, before it is built.

use std::collections::BTreeSet;

use tinderbox_fake::{NodeId, ValueId};

use crate::trace::{JointGraph, Role};

/// The operations of a program, the values that they read, and the values that others need.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// Its operations, in recorded order.
    pub(super) nodes: BTreeSet<NodeId>,
    /// Values that it reads and does not compute, without constants.
    pub(super) reads: BTreeSet<ValueId>,
    /// Values that it computes for the driver or the optimizer, or sends.
    pub(super) targets: BTreeSet<ValueId>,
    /// The positions in the table of the parameters whose gradients it computes.
    pub(super) gradients: BTreeSet<usize>,
    /// The positions in the table of the running states whose new values it computes.
    pub(super) updates: BTreeSet<usize>,
    /// The positions in the batch of the carried tensors whose new values it computes.
    pub(super) carried: BTreeSet<usize>,
}

impl Parts {
    /// Adds the operations that this program recomputes, and lists the values that it reads.
    pub(super) fn close(&mut self, joint: &JointGraph) {
        let graph = joint.graph();
        let inputs = self.nodes.iter().flat_map(|id| graph.node(*id).inputs());
        let updates = self.updates.iter().map(|state| &joint.updates()[state]);
        let wanted = inputs.chain(&self.targets).chain(updates);
        let carried = self.carried.iter().map(|input| &joint.carried()[input]);
        let mut wanted: Vec<ValueId> = wanted.chain(carried).copied().collect();
        self.reads.clear();
        while let Some(value) = wanted.pop() {
            let Some(producer) = graph.producer(value) else {
                continue;
            };
            let is_given = joint.given(value).is_some();
            if self.nodes.contains(&producer) && !is_given {
                continue;
            }
            let role = joint.role(producer);
            if matches!(role, Role::Recomputable | Role::BackwardLocal) && !is_given {
                self.nodes.insert(producer);
                wanted.extend(graph.node(producer).inputs());
            } else {
                self.reads.insert(value);
            }
        }
    }

    /// The values that its operations compute.
    pub(super) fn made(&self, joint: &JointGraph) -> BTreeSet<ValueId> {
        made(joint, self.nodes.iter().copied()).collect()
    }

    /// A backward that recomputes the values of the stage's forward. The forward then keeps only the values that it reads from
    /// other stages.
    pub(super) fn with_forward(&self, joint: &JointGraph, forward: &Self) -> Self {
        let made = forward.made(joint);
        let wanted = self.reads.intersection(&made).copied();
        let mut all = self.clone();
        all.nodes
            .extend(slice(joint, &forward.nodes, wanted, |_| false));
        all.close(joint);
        all
    }

    /// Divides a backward into the program of the values that are sent, and the program of the stage's gradients.
    pub(super) fn split(&self, joint: &JointGraph, sent: &BTreeSet<ValueId>) -> (Self, Self) {
        let mut input = Self {
            nodes: slice(joint, &self.nodes, sent.iter().copied(), |_| false),
            targets: sent.clone(),
            ..Self::default()
        };
        input.close(joint);
        // The second half reads the values of the first half, except values that are cheaper to recompute.
        let nodes = input.nodes.iter().copied();
        let kept = nodes.filter(|id| joint.role(*id) != Role::Recomputable);
        let kept: BTreeSet<ValueId> = made(joint, kept).collect();
        let is_kept = |value: &ValueId| kept.contains(value);
        let nodes = slice(joint, &self.nodes, self.targets.iter().copied(), is_kept);
        // The values that its operations and targets depend on, without constants.
        let inputs = nodes.iter().flat_map(|id| joint.graph().node(*id).inputs());
        let reads = inputs.chain(&self.targets).copied().filter(|value| {
            let producer = joint.graph().producer(*value);
            producer.is_some_and(|id| joint.given(*value).is_some() || !nodes.contains(&id))
        });
        let weight = Self {
            reads: reads.collect(),
            nodes,
            targets: self.targets.clone(),
            gradients: self.gradients.clone(),
            ..Self::default()
        };
        (input, weight)
    }
}

/// The values that operations compute.
fn made(joint: &JointGraph, nodes: impl Iterator<Item = NodeId>) -> impl Iterator<Item = ValueId> {
    let made = nodes.flat_map(|id| joint.graph().node(id).outputs());
    made.copied()
}

/// The operations among `nodes` that some values depend on. The search ends at values that are available.
fn slice(
    joint: &JointGraph,
    nodes: &BTreeSet<NodeId>,
    wanted: impl Iterator<Item = ValueId>,
    is_available: impl Fn(&ValueId) -> bool,
) -> BTreeSet<NodeId> {
    let graph = joint.graph();
    let is_outside = |value: ValueId| {
        let producer = graph.producer(value);
        is_available(&value)
            || joint.given(value).is_some()
            || producer.is_none_or(|id| !nodes.contains(&id))
    };
    let slice = graph.backward_slice(wanted, is_outside);
    slice.nodes.into_iter().collect()
}
