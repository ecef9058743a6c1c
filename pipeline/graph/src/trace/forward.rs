//! The forward operations that a plan assigns to stages.

use tinderbox_deferred::ParameterPath;
use tinderbox_fake::{NodeId, ValueId, hex_digest};

use super::{ForwardOperations, Given, JointGraph, Role};

impl JointGraph {
    /// The role of a node.
    pub fn role(&self, node: NodeId) -> Role {
        self.roles.get_or_init(|| roles_of(self))[node.index()]
    }

    /// Returns the forward operations that a plan assigns to stages, computed on first use.
    pub fn forward(&self) -> &ForwardOperations {
        self.forward.get_or_init(|| operations_of(self))
    }

    /// Returns the position of the forward operation that computes a value.
    pub fn position_of(&self, value: ValueId) -> Option<usize> {
        self.forward().position(self.graph().producer(value)?)
    }

    /// Returns the positions of the forward operations that read a value.
    pub fn reads_of(&self, value: ValueId) -> impl Iterator<Item = usize> {
        let users = self.graph().users(value).iter();
        users.filter_map(|node| self.forward().position(*node))
    }

    /// Returns the positions at which the forward reads some parameters for the first time.
    pub fn first_reads(&self, of: impl Fn(&ParameterPath) -> bool) -> impl Iterator<Item = usize> {
        let parameters = self.table().iter().enumerate();
        let parameters = parameters.filter(move |(_, parameter)| of(&parameter.path));
        parameters.filter_map(|(position, _)| self.forward().first_read(position))
    }

    /// Returns the module of the forward operation at a position: the module whose parameter was most recently
    /// read for the first time; empty before the first parameter.
    pub fn module_at(&self, position: usize) -> &str {
        let newest = self.forward().newest.get(position).copied().flatten();
        newest.map_or("", |parameter| self.parameter(parameter).path.module())
    }

    /// Returns the module of an operation. The module of an operation that no plan assigns, for example a backward
    /// operation, is the module of a forward operation whose value it reads.
    pub fn module_of(&self, node: NodeId) -> Option<&str> {
        let mut inputs = self.graph().node(node).inputs().iter();
        let own = self.forward().position(node);
        let position = own.or_else(|| inputs.find_map(|input| self.position_of(*input)));
        position.map(|position| self.module_at(position))
    }

    /// Returns the module of the last forward operation before an operation.
    pub fn module_before(&self, node: NodeId) -> Option<&str> {
        let before = self.forward().nodes.partition_point(|known| *known < node);
        Some(self.module_at(before.checked_sub(1)?))
    }
}

/// Finds the assigned forward operations. Cost: linear in the graph.
fn operations_of(joint: &JointGraph) -> ForwardOperations {
    let graph = joint.graph();
    let is_assigned = |id: &NodeId| joint.role(*id) == Role::Assigned;
    let nodes: Vec<NodeId> = graph.node_ids().filter(is_assigned).collect();
    let mut first_reads = vec![None; joint.table().len()];
    let mut newest = Vec::with_capacity(nodes.len());
    let mut structure = String::new();
    for (position, id) in nodes.iter().enumerate() {
        let node = graph.node(*id);
        structure.push_str(&node.name());
        let mut new = Vec::new();
        for input in node.inputs() {
            let made = graph.producer(*input);
            let made = made.and_then(|producer| nodes.binary_search(&producer).ok());
            structure.push_str(&match (joint.parameter_of(*input), made) {
                (Some(parameter), _) => {
                    if first_reads[parameter].is_none() {
                        first_reads[parameter] = Some(position);
                        new.push(parameter);
                    }
                    format!(" {}", joint.parameter(parameter).path)
                }
                (_, Some(made)) => format!(" {made}"),
                (_, None) => " -".to_owned(),
            });
        }
        structure.push('\n');
        let first = new.into_iter().min_by_key(|at| &joint.parameter(*at).path);
        newest.push(first.or_else(|| newest.last().copied().flatten()));
    }
    ForwardOperations {
        nodes,
        first_reads,
        newest,
        structure: hex_digest(structure.as_bytes()),
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
