//! The recorded graph.

mod build;
mod builder;
mod difference;
mod dtype;
mod node;
mod slice;

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use burn::tensor::{DType, Shape, TensorData};
use derive_more::Display;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

pub(crate) use build::{Built, DenseIds, build};
pub use builder::GraphBuilder;
pub use difference::Difference;
pub use dtype::Retyped;
pub use node::Node;
pub use slice::Slice;

use crate::GraphFileError;
use crate::operation::{NodeId, ValueId, typed_shape};

/// Data that was uploaded from the host while the graph was recorded. Equal when the bytes are equal.
///
/// Clones share the bytes, and so do the tensors that `flex` creates from them, until one is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "TensorData")]
pub(crate) struct Constant(TensorData);

impl Constant {
    pub(crate) fn data(&self) -> &TensorData {
        &self.0
    }
}

impl From<TensorData> for Constant {
    fn from(data: TensorData) -> Self {
        let (bytes, shape, dtype) = data.into_parts();
        Self(TensorData::from_bytes(bytes.shared(), shape, dtype))
    }
}

/// Constants by the ids of their values.
pub(crate) type Constants = BTreeMap<ValueId, Constant>;

/// The metadata of a value; its text is dtype and shape, such as `f32[4, 8]`.
#[derive(Clone, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display("{}", typed_shape(*dtype, shape))]
pub struct Value {
    /// Size per dimension.
    pub shape: Shape,
    /// Type of an element.
    pub dtype: DType,
    /// The node that computes it; `None` for a constant.
    pub producer: Option<NodeId>,
}

impl Value {
    fn new(shape: Shape, dtype: DType, producer: Option<NodeId>) -> Self {
        Self {
            shape,
            dtype,
            producer,
        }
    }

    /// Returns the bytes of the elements.
    pub fn bytes(&self) -> u64 {
        self.shape.num_elements() as u64 * self.dtype.size() as u64
    }
}

/// The operations that a closure ran, with the values between them.
///
/// Immutable; clones share the operations. Memory: about the size of Burn's operations, a few
/// hundred bytes each, and the constants.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    nodes: Arc<Vec<Node>>,
    values: Vec<Value>,
    constants: Constants,
    /// The nodes that read each value. Stored inline, because most values have few readers.
    users: Vec<SmallVec<[NodeId; 4]>>,
}

impl Graph {
    /// Assembles a graph, and rejects parts that contradict each other.
    pub(crate) fn new(
        nodes: Vec<Node>,
        values: Vec<Value>,
        constants: Constants,
    ) -> Result<Self, GraphFileError> {
        let graph = Self::assemble(nodes, values, constants);
        graph.check()?;
        Ok(graph)
    }

    /// Assembles a graph from consistent parts.
    fn assemble(nodes: Vec<Node>, values: Vec<Value>, constants: Constants) -> Self {
        let mut users: Vec<SmallVec<[NodeId; 4]>> = vec![SmallVec::new(); values.len()];
        for (index, node) in nodes.iter().enumerate() {
            let node_id = NodeId::at(index);
            for input in node.inputs() {
                // If the parts are inconsistent, an input may not be a value: `check` finds it.
                let users = users.get_mut(input.index());
                if let Some(users) = users.filter(|users| users.last() != Some(&node_id)) {
                    users.push(node_id);
                }
            }
        }
        Self {
            nodes: Arc::new(nodes),
            values,
            constants,
            users,
        }
    }

    /// Checks that the parts are consistent.
    fn check(&self) -> Result<(), GraphFileError> {
        let inconsistent = |reason| Err(GraphFileError::Inconsistent { reason });
        let values = &self.values;
        let mut made: Vec<bool> = values.iter().map(|v| v.producer.is_none()).collect();
        for (id, node) in self.node_ids().zip(self.nodes()) {
            for input in node.inputs() {
                if made.get(input.index()) != Some(&true) {
                    return inconsistent("a node reads a value that no earlier node computes");
                }
            }
            for (output, tensor) in node.outputs().iter().zip(node.operation.outputs()) {
                let value = values.get(output.index());
                let Some(value) = value.filter(|value| value.producer == Some(id)) else {
                    return inconsistent("a node computes a value that has another producer");
                };
                if value.shape != tensor.shape || value.dtype != tensor.dtype {
                    return inconsistent("a node computes a value of another shape or dtype");
                }
                made[output.index()] = true;
            }
        }
        if made.iter().any(|made| !made) {
            return inconsistent("a value has no producer");
        }
        for (id, value) in values.iter().enumerate() {
            let constant = self.constants.get(&ValueId::at(id));
            if value.producer.is_some() == constant.is_some() {
                return inconsistent("a constant has no data, or a computed value has some");
            }
            let differs = |c: &Constant| (c.0.dtype(), c.0.shape()) != (value.dtype, &value.shape);
            if constant.is_some_and(differs) {
                return inconsistent("a constant's data has another shape or dtype");
            }
        }
        Ok(())
    }

    /// Returns the operations in recorded order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the operations in recorded order, shared, so that programs do not copy them.
    pub fn shared_nodes(&self) -> Arc<Vec<Node>> {
        self.nodes.clone()
    }

    /// Returns the values in recorded order.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// Returns an operation.
    ///
    /// # Panics
    ///
    /// When the id is of another graph and out of range.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// Returns name, arguments and outputs of an operation, such as `Float.Random(Uniform(-0.1, 0.1)) -> f32[4, 8]`.
    ///
    /// # Panics
    ///
    /// When the id is of another graph and out of range.
    pub fn describe(&self, id: NodeId) -> String {
        self.node(id).operation().describe()
    }

    /// Returns the metadata of a value.
    ///
    /// # Panics
    ///
    /// When the id is of another graph and out of range.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// Returns the operation that computes a value; `None` for a constant.
    ///
    /// # Panics
    ///
    /// When the id is of another graph and out of range.
    pub fn producer(&self, id: ValueId) -> Option<NodeId> {
        self.value(id).producer
    }

    /// Returns the bytes of some values.
    ///
    /// # Panics
    ///
    /// When an id is of another graph and out of range.
    pub fn bytes<V: Borrow<ValueId>>(&self, values: impl IntoIterator<Item = V>) -> u64 {
        let values = values.into_iter();
        values.map(|id| self.value(*id.borrow()).bytes()).sum()
    }

    /// Returns the ids of all nodes, in recorded order.
    pub fn node_ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.nodes.len()).map(NodeId::at)
    }

    /// Returns the ids of all values, in recorded order.
    pub fn value_ids(&self) -> impl DoubleEndedIterator<Item = ValueId> + use<> {
        (0..self.values.len()).map(ValueId::at)
    }

    /// Returns the data of a constant; `None` for a value that a node computes.
    pub fn constant(&self, id: ValueId) -> Option<&TensorData> {
        self.constants.get(&id).map(Constant::data)
    }

    /// Returns all constants, in recorded order.
    pub(crate) fn constants(&self) -> &Constants {
        &self.constants
    }

    /// Returns the nodes that read a value, in recorded order, each once.
    pub fn users(&self, id: ValueId) -> &[NodeId] {
        &self.users[id.index()]
    }

    /// Returns the nodes that read an output of a node, once for each output.
    pub fn readers(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let outputs = self.node(id).outputs().iter();
        outputs.flat_map(|output| self.users(*output)).copied()
    }

    /// Returns whether a value is a constant, the same in every run.
    pub fn is_constant(&self, id: ValueId) -> bool {
        self.values[id.index()].producer.is_none()
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.nodes.iter().enumerate() {
            write!(f, "{} = {}(", NodeId::at(index), node.name())?;
            for (position, input) in node.inputs().iter().enumerate() {
                write!(f, "{}{input}", if position == 0 { "" } else { ", " })?;
            }
            write!(f, ")")?;
            for output in node.outputs() {
                write!(f, " -> {output}: {}", self.value(*output))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Int, Tensor};

    use crate::{RecordOptions, record};

    #[test]
    fn prints_names_shapes_and_users() {
        let ((), recording) = record(&RecordOptions::default(), |device| {
            let x = Tensor::<2>::zeros([2, 3], device);
            let y = Tensor::<2>::from_floats([[1.0, 2.0, 3.0]], device);
            let z = (x.clone() + y).matmul(x.transpose());
            let _ = z.argmax(1).equal(Tensor::<2, Int>::ones([2, 1], device));
        })
        .unwrap();
        insta::assert_snapshot!(recording.graph().to_string());
        let x = recording.graph().nodes()[0].outputs()[0];
        assert_eq!(recording.graph().users(x).len(), 2);
    }
}
