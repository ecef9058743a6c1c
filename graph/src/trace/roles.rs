//! The dependencies of each operation of a joint graph, which determine where it may run.

use tinderbox_fake::NodeId;

use super::{Given, JointGraph, Role};

impl JointGraph {
    /// The role of a node.
    pub fn role(&self, node: NodeId) -> Role {
        self.roles.get_or_init(|| roles_of(self))[node.index()]
    }
}

/// Computes the role of every node. Cost: linear in the graph.
fn roles_of(joint: &JointGraph) -> Vec<Role> {
    let graph = joint.graph();
    let values = &joint.values;
    let outputs = values.outputs.iter().map(|(_, value)| value);
    let targets = values.loss.iter().chain(outputs);
    let targets = targets.chain(values.gradients.iter().flatten());
    let targets = targets.chain(values.updates.values());
    let targets = targets.chain(values.carried.values()).copied();
    let needed = graph.backward_slice(targets, |value| joint.given(value).is_some());

    let mut roles = vec![Role::Unused; graph.nodes().len()];
    // A gradient descends from the weight within the backward pass.
    let mut from_weight = vec![false; graph.values().len()];
    from_weight[joint.weight().index()] = true;
    for id in needed.nodes {
        let node = graph.node(id);
        let (mut constant, mut recomputable, mut gradient) = (true, true, false);
        for input in node.inputs() {
            let role = match (joint.given(*input), graph.producer(*input)) {
                (Some(Given::Parameter(_)), _) => Role::Assigned,
                (Some(_), _) => Role::Recomputable,
                (None, None) => Role::Constant,
                (None, Some(producer)) => roles[producer.index()],
            };
            constant &= role == Role::Constant;
            recomputable &= matches!(role, Role::Constant | Role::Recomputable);
            gradient |= joint.is_backward(id) && from_weight[input.index()];
        }
        let forward_random = node.operation().random().is_some() && !joint.is_initialization(id);
        roles[id.index()] = if constant && !forward_random {
            Role::Constant
        } else if recomputable && node.operation().product_flops().is_none() {
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
