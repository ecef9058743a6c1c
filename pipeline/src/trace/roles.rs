//! The dependencies of each operation of a joint graph, which determine where it may run.

use tinderbox_deferred::is_random;
use tinderbox_fake::ValueId;

use super::{Given, JointGraph};
use crate::cost::product_flops;

/// Where an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nowhere: no required value depends on it, or it initializes a parameter.
    Unused,
    /// Once per run, on every stage that reads it: it depends on constants only.
    Constant,
    /// On every stage that reads it, whenever it is read: it depends on the batch, on random keys and
    /// on constants, and is no product, so that it is cheaper to recompute than to send or keep.
    Recomputable,
    /// On the stage that the plan assigns it to: it depends on parameters, or is a product of the batch.
    Assigned,
    /// In the backward of every stage that reads it: it depends on forward values and on no gradient.
    BackwardLocal,
    /// In the backward of one stage, chosen by the cut: it depends on gradients.
    Gradient,
}

/// Computes the role of every node. Cost: linear in the graph.
pub(super) fn roles_of(joint: &JointGraph) -> Vec<Role> {
    let graph = joint.graph();
    let targets: Vec<ValueId> = joint
        .loss()
        .into_iter()
        .chain(joint.outputs().iter().map(|(_, value)| *value))
        .chain(joint.gradients().iter().flatten().copied())
        .chain(joint.updates().values().copied())
        .chain(joint.carried().values().copied())
        .collect();
    let needed = graph.backward_slice(targets, |value| joint.given(value).is_some());

    let mut roles = vec![Role::Unused; graph.nodes().len()];
    // A gradient descends from the weight within the backward pass.
    let mut from_weight = vec![false; graph.values().len()];
    from_weight[joint.weight().index()] = true;
    for id in needed.nodes {
        let node = graph.node(id);
        let (mut constant, mut recomputable, mut gradient) = (true, true, false);
        for input in node.inputs() {
            let role = match (joint.given(*input), graph.value(*input).producer) {
                (Some(Given::Parameter(_)), _) => Role::Assigned,
                (Some(_), _) => Role::Recomputable,
                (None, None) => Role::Constant,
                (None, Some(producer)) => roles[producer.index()],
            };
            constant &= role == Role::Constant;
            recomputable &= matches!(role, Role::Constant | Role::Recomputable);
            gradient |= joint.is_backward(id) && from_weight[input.index()];
        }
        let forward_random = is_random(node) && !joint.is_initialization(id);
        roles[id.index()] = if constant && !forward_random {
            Role::Constant
        } else if recomputable && product_flops(&node.operation).is_none() {
            Role::Recomputable
        } else if gradient {
            Role::Gradient
        } else if joint.is_backward(id) {
            Role::BackwardLocal
        } else {
            Role::Assigned
        };
        if gradient {
            for output in node.outputs() {
                from_weight[output.index()] = true;
            }
        }
    }
    roles
}
