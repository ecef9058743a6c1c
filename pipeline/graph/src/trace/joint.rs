//! Forward, loss and gradients of a model in one graph.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};

use tinderbox_deferred::{Parameter, ParameterTable, RandomKeys};
use tinderbox_fake::{Graph, Mode, NodeId, Retyped, ValueId};

use super::LossOver;
use crate::{Leaf, TraceError};

/// The result of a recording or of a check.
pub(super) type Result<T, E = TraceError> = std::result::Result<T, E>;

/// The key of a model's program: training or forward only, and the batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProgramKey {
    /// Training, or forward only.
    pub mode: Mode,
    /// Name, shape and dtype of every tensor of the batch.
    pub leaves: Vec<Leaf>,
    /// The parts of the batch without a tensor: options that are `None`, lists that are empty.
    pub empty: Vec<String>,
}

impl fmt::Display for ProgramKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.mode {
            Mode::Training => "training",
            Mode::Inference => "inference",
        })?;
        for leaf in &self.leaves {
            write!(f, " {}:{:?}{:?}", leaf.name, leaf.dtype, leaf.shape)?;
        }
        self.empty.iter().try_for_each(|part| write!(f, " {part}"))
    }
}

/// The stages that run an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// No stage: no required value depends on the operation, or it initializes a parameter.
    Unused,
    /// Every stage that reads it, once per run: it depends on constants only.
    Constant,
    /// Every stage that reads it, at each read: it depends on the batch, on random keys and
    /// on constants, and is not a product, so recomputing it is cheaper than sending or keeping it.
    Recomputable,
    /// The stage that the plan assigns it to: it depends on parameters, or is a product of the batch.
    Assigned,
    /// Every stage that reads it, in its backward: it depends on forward values and on no gradient.
    BackwardLocal,
    /// One stage, in its backward, chosen by the cut: it depends on gradients.
    Gradient,
}

/// The assigned forward operations of a program in recorded order, and the positions at which parameters are read.
/// A position is the index of an operation in this order.
#[derive(Clone, Debug)]
pub struct ForwardOperations {
    pub(super) nodes: Vec<NodeId>,
    /// The position at which each parameter of the table is read first.
    pub(super) first_reads: Vec<Option<usize>>,
    /// For each position, the parameter that was most recently read for the first time.
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

    /// The position of the operation that reads a parameter of the table first; `None` for a parameter that no operation
    /// reads, and for clones.
    pub fn first_read(&self, parameter: usize) -> Option<usize> {
        self.first_reads[parameter]
    }

    /// A digest of the operations and their inputs, without shapes. Programs with the same digest are cut at the same
    /// positions.
    pub fn structure(&self) -> &str {
        &self.structure
    }
}

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
    /// The parameter at a position of the table. Clones share a value; the position is the position of the first.
    Parameter(usize),
    /// The tensor at a position of the batch.
    Input(usize),
    /// The weight of the micro-batch.
    Weight,
}

/// The values that a forward and its backward read and compute. Parameters have their position in the table, and tensors of
/// the batch their position in the batch.
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
    /// The running states that do not belong to Burn's batch norms.
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
    /// The forward operations, computed on first use.
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

    /// The bytes of a parameter in the dtype in which the forward reads it; 0 if that is its own dtype.
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
    /// no operation of the constructor computes. Clones of a parameter share a value.
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

    /// Returns the items over which the loss is a mean or a sum. A count is a value of the graph.
    pub fn loss_over(&self) -> &LossOver<ValueId> {
        &self.values.loss_over
    }

    /// Returns the named outputs.
    pub fn outputs(&self) -> &[(String, ValueId)] {
        &self.values.outputs
    }

    /// Returns the gradient of each parameter, in the order of the table; `None` for a parameter
    /// without a gradient.
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

    /// Returns the new value of each running state that the forward updates, for example the statistics of batch
    /// norm, by its position in the table. Clones share a state, at the position of the first.
    pub fn updates(&self) -> &BTreeMap<usize, ValueId> {
        &self.values.updates
    }

    /// Returns the new value of each carried tensor of the batch, by its position in the batch. Empty for training
    /// programs.
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

    /// The origin of a value that no operation of a program computes; `None` for other values.
    pub fn given(&self, value: ValueId) -> Option<Given> {
        self.given.get(&value).copied()
    }

    /// The position of a parameter from its value; `None` for other values.
    pub fn parameter_of(&self, value: ValueId) -> Option<usize> {
        match self.given(value)? {
            Given::Parameter(position) => Some(position),
            Given::Input(_) | Given::Weight => None,
        }
    }

    /// The position of a tensor of the batch from its value; `None` for other values.
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
