//! The operations of a joint graph: where each may run, and those that a plan assigns to stages.

use tinderbox_fake::NodeId;

/// Where an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
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

/// The assigned forward operations of a program in recorded order, and where each parameter is read.
/// A position is the index of an operation among them.
#[derive(Clone, Debug)]
pub struct ForwardOperations {
    pub(super) nodes: Vec<NodeId>,
    /// The position at which each parameter of the table is read first.
    pub(super) first_reads: Vec<Option<usize>>,
    /// The parameter that was read last for the first time, at each position.
    pub(super) newest: Vec<Option<usize>>,
    pub(super) structure: String,
}

impl ForwardOperations {
    /// The operations.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The position of an operation.
    pub fn position(&self, node: NodeId) -> Option<usize> {
        self.nodes.binary_search(&node).ok()
    }

    /// The position of the operation that reads a parameter of the table first; `None` when none does,
    /// and for clones.
    pub fn first_read(&self, parameter: usize) -> Option<usize> {
        self.first_reads[parameter]
    }

    /// A digest of the operations and of what each reads, without shapes: programs with the same digest
    /// are cut alike.
    pub fn structure(&self) -> &str {
        &self.structure
    }
}
