//! The forward operations that a plan assigns to stages.

use tinderbox_deferred::ParameterPath;
use tinderbox_fake::{NodeId, ValueId, hex_digest};

use super::{ForwardOperations, JointGraph, Role};

impl JointGraph {
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
    pub fn first_reads(
        &self,
        keep: impl Fn(&ParameterPath) -> bool,
    ) -> impl Iterator<Item = usize> {
        let parameters = self.table().iter().enumerate();
        let kept = parameters.filter(move |(_, parameter)| keep(&parameter.path));
        kept.filter_map(|(position, _)| self.forward().first_read(position))
    }

    /// Returns the module that the forward operation at a position belongs to: the one whose parameter
    /// was read last for the first time; empty before any.
    pub fn module_at(&self, position: usize) -> &str {
        let newest = self.forward().newest.get(position).copied().flatten();
        newest.map_or("", |parameter| self.parameter(parameter).path.module())
    }

    /// Returns the module of an operation; for one that no plan assigns, such as a backward operation,
    /// the module of a forward operation whose value it reads.
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

/// Cost: linear in the graph.
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
