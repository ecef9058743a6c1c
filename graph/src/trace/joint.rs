//! Forward, loss and gradients of a model in one graph.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use tinderbox_deferred::{Parameter, ParameterTable, RandomKeys};
use tinderbox_fake::{Graph, NodeId, Retyped, ValueId};

use super::{ForwardOperations, LossOver, ProgramKey, Role};
use crate::batch::Leaf;

/// One tensor of the batch, in the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct TracedInput {
    /// Name, shape and dtype.
    pub leaf: Leaf,
    /// Its value.
    pub value: ValueId,
}

/// A value that no operation of a program computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// The parameter at a position of the table; of clones, which share a value, the first.
    Parameter(usize),
    /// The tensor at a position of the batch.
    Input(usize),
    /// The weight of the micro-batch.
    Weight,
}

/// The values that a forward and its backward read and compute; parameters by their position in the table, tensors of the
/// batch by their position in the batch.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Values {
    pub(super) parameters: Vec<ValueId>,
    pub(super) inputs: Vec<TracedInput>,
    pub(super) weight: ValueId,
    pub(super) loss: Option<ValueId>,
    pub(super) loss_over: LossOver<ValueId>,
    pub(super) outputs: Vec<(String, ValueId)>,
    pub(super) gradients: Vec<Option<ValueId>>,
    /// The new values of running states.
    pub(super) updates: BTreeMap<usize, ValueId>,
    /// The new values of carried tensors.
    pub(super) carried: BTreeMap<usize, ValueId>,
}

/// The positions of running states.
#[derive(Clone, Debug)]
pub(super) struct RunningStates {
    pub(super) running: BTreeSet<usize>,
    /// Those that do not belong to Burn's batch norms.
    pub(super) own: BTreeSet<usize>,
}

/// Forward, loss and gradients of a model in one graph, for one mode and one batch shape.
#[derive(Clone, Debug)]
pub struct JointGraph {
    pub(super) key: ProgramKey,
    pub(super) table: Arc<ParameterTable>,
    pub(super) graph: Graph,
    pub(super) keys: RandomKeys,
    pub(super) forward_start: usize,
    pub(super) backward_start: usize,
    pub(super) marks: Vec<ValueId>,
    pub(super) values: Values,
    pub(super) given: HashMap<ValueId, Given>,
    pub(super) states: RunningStates,
    /// The roles of all nodes, computed on first use.
    pub(super) roles: OnceLock<Vec<Role>>,
    /// Computed on first use.
    pub(super) forward: OnceLock<ForwardOperations>,
}

impl JointGraph {
    /// Returns the mode and the batch shapes.
    pub fn key(&self) -> &ProgramKey {
        &self.key
    }

    /// Returns the parameters of the model.
    pub fn table(&self) -> &ParameterTable {
        &self.table
    }

    /// The parameter at a position of the table.
    pub fn parameter(&self, position: usize) -> &Parameter {
        &self.table.iter().as_slice()[position]
    }

    /// The bytes of a parameter in the dtype in which the forward reads it, if that is not its own.
    pub fn cast_bytes(&self, position: usize) -> u64 {
        let read = self.graph.value(self.values.parameters[position]);
        match read.dtype == self.parameter(position).dtype {
            true => 0,
            false => read.bytes(),
        }
    }

    /// Returns all operations: initialization, forward, backward.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the value of each parameter, in the order of the table: a placeholder without data that
    /// no operation of the constructor computes. Clones of a parameter share theirs.
    pub fn parameters(&self) -> &[ValueId] {
        &self.values.parameters
    }

    /// Returns the tensors of the batch.
    pub fn inputs(&self) -> &[TracedInput] {
        &self.values.inputs
    }

    /// Returns the weight of the micro-batch, one f32, or one f64 if the loss is f64: the gradients are
    /// the gradients of `loss * weight`.
    pub fn weight(&self) -> ValueId {
        self.values.weight
    }

    /// Returns the unweighted loss.
    pub fn loss(&self) -> Option<ValueId> {
        self.values.loss
    }

    /// Returns what the loss is a mean or a sum over; a count is a value of the graph.
    pub fn loss_over(&self) -> &LossOver<ValueId> {
        &self.values.loss_over
    }

    /// Returns the named outputs.
    pub fn outputs(&self) -> &[(String, ValueId)] {
        &self.values.outputs
    }

    /// Returns the gradient of each parameter, in the order of the table; `None` for a parameter
    /// without one.
    pub fn gradients(&self) -> &[Option<ValueId>] {
        &self.values.gradients
    }

    /// Returns whether a node belongs to the initialization, which computes parameters or fields of the
    /// model.
    pub fn is_initialization(&self, node: NodeId) -> bool {
        node.index() < self.forward_start
    }

    /// Returns whether a node belongs to the backward pass.
    pub fn is_backward(&self, node: NodeId) -> bool {
        node.index() >= self.backward_start
    }

    /// Returns the values at which the author of the forward marked cuts, in order.
    pub fn marks(&self) -> &[ValueId] {
        &self.marks
    }

    /// Returns the new value of each running state that the forward updates, such as the statistics of batch
    /// norm, by its position in the table. Of clones, which share a state, the first has it.
    pub fn updates(&self) -> &BTreeMap<usize, ValueId> {
        &self.values.updates
    }

    /// Returns the new value of each carried tensor of the batch, by its position in the batch; of a program that
    /// trains, none.
    pub fn carried(&self) -> &BTreeMap<usize, ValueId> {
        &self.values.carried
    }

    /// The positions of all running states.
    pub fn running(&self) -> &BTreeSet<usize> {
        &self.states.running
    }

    /// Replaces the graph by one with the same values, and more operations.
    pub(super) fn retype(&mut self, retyped: Retyped) {
        let count = retyped.graph.nodes().len();
        let index = |old: usize| retyped.nodes.get(old).map_or(count, |node| node.index());
        self.forward_start = index(self.forward_start);
        self.backward_start = index(self.backward_start);
        let keys = std::mem::take(&mut self.keys).into_iter();
        let keys = keys.map(|(node, key)| (retyped.nodes[node.index()], key));
        self.keys = keys.collect();
        self.graph = retyped.graph;
    }

    /// Where a value comes from that no operation of a program computes.
    pub fn given(&self, value: ValueId) -> Option<Given> {
        self.given.get(&value).copied()
    }

    /// The position of the parameter that a value is.
    pub fn parameter_of(&self, value: ValueId) -> Option<usize> {
        match self.given(value)? {
            Given::Parameter(position) => Some(position),
            Given::Input(_) | Given::Weight => None,
        }
    }

    /// The position of the tensor of the batch that a value is.
    pub fn input_of(&self, value: ValueId) -> Option<usize> {
        match self.given(value)? {
            Given::Input(position) => Some(position),
            Given::Parameter(_) | Given::Weight => None,
        }
    }

    /// Returns the keys of all random operations.
    pub fn keys(&self) -> &RandomKeys {
        &self.keys
    }
}

#[cfg(test)]
impl JointGraph {
    /// Returns a copy with other operations or keys.
    pub fn with(&self, graph: Graph, keys: RandomKeys) -> Self {
        Self {
            graph,
            keys,
            roles: OnceLock::new(),
            forward: OnceLock::new(),
            ..self.clone()
        }
    }
}
