//! The forward operations that a plan assigns to stages.

use std::collections::BTreeMap;

use tinderbox_fake::NodeId;
use twox_hash::XxHash3_128;

use super::{Given, JointGraph, Role};

/// The assigned forward operations of a program in recorded order, and where each parameter is read.
/// A position is the index of an operation among them.
#[derive(Clone, Debug)]
pub(crate) struct ForwardOperations {
    nodes: Vec<NodeId>,
    /// The position at which each parameter of the table is read first.
    first_reads: Vec<Option<usize>>,
    /// The parameter that was read last for the first time, at each position.
    newest: Vec<Option<usize>>,
    structure: String,
}

impl ForwardOperations {
    /// Cost: linear in the graph.
    pub(super) fn new(joint: &JointGraph) -> Self {
        let graph = joint.graph();
        let nodes = graph.node_ids();
        let nodes: Vec<NodeId> = nodes
            .filter(|id| joint.role(*id) == Role::Assigned)
            .collect();
        let mut first_reads = vec![None; joint.table().len()];
        let mut newest = Vec::with_capacity(nodes.len());
        let mut structure = String::new();
        let mut positions = BTreeMap::new();
        for (position, id) in nodes.iter().enumerate() {
            let node = graph.node(*id);
            structure.push_str(&node.name());
            let mut new = Vec::new();
            for input in node.inputs() {
                let made = graph.value(*input).producer;
                let made = made.and_then(|producer| positions.get(&producer));
                structure.push_str(&match (joint.given(*input), made) {
                    (Some(Given::Parameter(parameter)), _) => {
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
            positions.insert(*id, position);
            let first = new.into_iter().min_by_key(|at| &joint.parameter(*at).path);
            newest.push(first.or_else(|| newest.last().copied().flatten()));
        }
        Self {
            nodes,
            first_reads,
            newest,
            structure: format!("{:032x}", XxHash3_128::oneshot(structure.as_bytes())),
        }
    }

    /// The operations.
    pub(crate) fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The position of an operation.
    pub(crate) fn position(&self, node: NodeId) -> Option<usize> {
        self.nodes.binary_search(&node).ok()
    }

    /// The position of the operation that reads a parameter of the table first; `None` when none does,
    /// and for clones.
    pub(crate) fn first_read(&self, parameter: usize) -> Option<usize> {
        self.first_reads[parameter]
    }

    /// A digest of the operations and of what each reads, without shapes: programs with the same digest
    /// are cut alike.
    pub(crate) fn structure(&self) -> &str {
        &self.structure
    }
}

impl JointGraph {
    /// Returns the forward operations that a plan assigns to stages, computed on first use.
    pub(crate) fn forward(&self) -> &ForwardOperations {
        self.forward.get_or_init(|| ForwardOperations::new(self))
    }

    /// Returns the module that the forward operation at a position belongs to: the one whose parameter
    /// was read last for the first time; empty before any.
    pub(crate) fn module_at(&self, position: usize) -> &str {
        let newest = self.forward().newest.get(position).copied().flatten();
        newest.map_or("", |parameter| self.parameter(parameter).path.module())
    }

    /// Returns the module of an operation; for one that no plan assigns, such as a backward operation,
    /// the module of a forward operation whose value it reads.
    pub(crate) fn module_of(&self, node: NodeId) -> Option<&str> {
        let graph = self.graph();
        let mut inputs = graph.node(node).inputs().iter();
        let position = self.forward().position(node).or_else(|| {
            inputs.find_map(|input| self.forward().position(graph.value(*input).producer?))
        });
        position.map(|position| self.module_at(position))
    }

    /// Returns the module of the last forward operation before an operation.
    pub(crate) fn module_before(&self, node: NodeId) -> Option<&str> {
        let before = self.forward().nodes.partition_point(|known| *known < node);
        Some(self.module_at(before.checked_sub(1)?))
    }
}
