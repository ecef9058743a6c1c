//! Builds a graph node by node, for code that rewrites recorded graphs.

use std::sync::Arc;

use burn::tensor::{DType, Shape, TensorData};
use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};

use super::{Constants, Graph, Node, Value};
use crate::GraphFileError;
use crate::operation::{NodeId, ValueId, change_tensors};

/// A builder of a graph.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    nodes: Vec<Node>,
    values: Vec<Value>,
    constants: Constants,
}

impl GraphBuilder {
    /// Creates a builder without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a builder with the values and constants of a graph, without its operations.
    pub(super) fn of_values(graph: &Graph) -> Self {
        let mut values = graph.values.clone();
        values.iter_mut().for_each(|value| value.producer = None);
        Self {
            nodes: Vec::with_capacity(graph.nodes.len()),
            values,
            constants: graph.constants.clone(),
        }
    }

    /// Sets the dtype of a value that the next operation computes.
    pub(super) fn retype(&mut self, id: ValueId, dtype: DType) {
        self.values[id.index()].dtype = dtype;
    }

    /// Adds a constant.
    pub fn constant(&mut self, data: TensorData) -> ValueId {
        let id = self.declare(data.shape().clone(), data.dtype());
        self.constants.insert(id, data.into());
        id
    }

    /// Declares a value that a [`copy`](Self::copy) computes.
    pub fn declare(&mut self, shape: Shape, dtype: DType) -> ValueId {
        let id = ValueId::at(self.values.len());
        self.values.push(Value::new(shape, dtype, None));
        id
    }

    /// Returns a value as a tensor, for use as an input of an operation.
    pub fn input(&self, id: ValueId) -> TensorIr {
        self.tensor(id, TensorStatus::ReadOnly)
    }

    fn tensor(&self, id: ValueId, status: TensorStatus) -> TensorIr {
        let Value { shape, dtype, .. } = self.values[id.index()].clone();
        let id = TensorId::new(id.index() as u64);
        TensorIr {
            status,
            ..TensorIr::uninit(id, shape, dtype)
        }
    }

    /// Adds an operation on values of this builder with one output, and returns its value. `operation` gets the output as a
    /// tensor.
    ///
    /// # Panics
    ///
    /// When a tensor of the operation is not a value of this builder.
    pub fn add(
        &mut self,
        shape: Shape,
        dtype: DType,
        operation: impl FnOnce(TensorIr) -> OperationIr,
    ) -> ValueId {
        let id = self.declare(shape, dtype);
        self.node(operation(self.tensor(id, TensorStatus::NotInit)));
        id
    }

    /// Adds an operation of any graph, which reads and computes these values of this builder.
    ///
    /// # Panics
    ///
    /// When the operation has another number of inputs or outputs.
    pub fn copy(
        &mut self,
        operation: &OperationIr,
        inputs: &[ValueId],
        outputs: &[ValueId],
    ) -> NodeId {
        assert_eq!(operation.inputs().count(), inputs.len(), "the inputs");
        assert_eq!(operation.outputs().count(), outputs.len(), "the outputs");
        let mut operation = operation.clone();
        // Burn visits the inputs in their order, then the outputs.
        let mut values = inputs.iter().chain(outputs);
        change_tensors(&mut operation, |tensor| {
            let value = values.next().expect("a value for each tensor");
            *tensor = self.tensor(*value, tensor.status);
        });
        self.node(operation)
    }

    fn node(&mut self, operation: OperationIr) -> NodeId {
        let id = NodeId::at(self.nodes.len());
        let node = Node::new(operation).expect("ids of a builder are small");
        for output in node.outputs() {
            self.values[output.index()].producer = Some(id);
        }
        self.nodes.push(node);
        id
    }

    /// Returns the graph.
    ///
    /// # Errors
    ///
    /// When an output was declared and no node computes it, or a node reads the output of a later node.
    pub fn finish(self) -> Result<Graph, GraphFileError> {
        Graph::new(self.nodes, self.values, self.constants)
    }
}

/// Creates a builder that continues at the end of a graph.
impl From<Graph> for GraphBuilder {
    fn from(graph: Graph) -> Self {
        Self {
            nodes: Arc::unwrap_or_clone(graph.nodes),
            values: graph.values,
            constants: graph.constants,
        }
    }
}
