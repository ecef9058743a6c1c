//! The nodes that read each value.

use super::node::Node;
use crate::operation::{NodeId, ValueId};

/// The nodes that read each value, as concatenated lists: two allocations for a whole graph.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Users {
    nodes: Vec<NodeId>,
    /// The end of each value's list, which is the start of the next.
    ends: Vec<u32>,
}

impl Users {
    /// Ignores values from `values` on.
    pub(super) fn of(nodes: &[Node], values: usize) -> Self {
        // One entry more, so that the start of each list can advance to its end.
        let mut ends = vec![0_u32; values + 1];
        let mut count = 0_u32;
        each_read(nodes, values, |value, _| {
            ends[value.index() + 1] += 1;
            count += 1;
        });
        for value in 1..ends.len() {
            ends[value] += ends[value - 1];
        }
        let mut users = vec![NodeId::at(0); count as usize];
        each_read(nodes, values, |value, node| {
            let end = &mut ends[value.index()];
            users[*end as usize] = node;
            *end += 1;
        });
        ends.truncate(values);
        Self { nodes: users, ends }
    }

    pub(super) fn of_value(&self, value: ValueId) -> &[NodeId] {
        let end = self.ends[value.index()] as usize;
        let start = match value.index() {
            0 => 0,
            index => self.ends[index - 1] as usize,
        };
        &self.nodes[start..end]
    }
}

/// Calls `read` once for each value that each node reads, even if a node reads it twice.
fn each_read(nodes: &[Node], values: usize, mut read: impl FnMut(ValueId, NodeId)) {
    for (index, node) in nodes.iter().enumerate() {
        let inputs = node.inputs();
        for (position, input) in inputs.iter().enumerate() {
            if input.index() < values && !inputs[..position].contains(input) {
                read(*input, NodeId::at(index));
            }
        }
    }
}
