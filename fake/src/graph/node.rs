//! The operations of a graph, and the ids of operations and values.

use std::fmt;

use burn_ir::{OperationIr, TensorIr};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::describe::operation_name;

/// The id of a value of a graph: the output of a node, or a constant. Dense, in recorded order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ValueId(u32);

/// The id of an operation of a graph. Dense, in recorded order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(u32);

macro_rules! index {
    ($id:ident, $letter:literal) => {
        impl $id {
            /// Returns the id at an index in recorded order.
            pub(crate) fn at(index: usize) -> Self {
                Self(u32::try_from(index).expect("a graph has fewer than 2^32 values and nodes"))
            }

            /// Returns the index in recorded order.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($letter, "{}"), self.0)
            }
        }
    };
}

index!(ValueId, "%");
index!(NodeId, "#");

impl ValueId {
    /// Returns the value that a tensor of a graph's operation refers to; `None` for an id that is out of range for all
    /// graphs.
    pub fn of_tensor(tensor: &TensorIr) -> Option<Self> {
        u32::try_from(tensor.id.value()).ok().map(Self)
    }
}

/// One recorded operation. Its tensor ids are the ids of [`ValueId`], and every status is
/// `ReadOnly` or `NotInit`: the executor of the graph decides which memory is reused.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Burn's operation.
    pub operation: OperationIr,
    operands: Operands,
}

/// The inputs of an operation, followed by its outputs.
#[derive(Clone, Debug, PartialEq)]
struct Operands {
    /// Stored inline, because most operations have at most two inputs and an output.
    values: SmallVec<[ValueId; 4]>,
    inputs: usize,
}

impl Operands {
    /// Returns the operands of an operation whose tensor ids are value ids; `None` when an id is out of range.
    fn of(operation: &OperationIr) -> Option<Self> {
        let mut values = SmallVec::new();
        for tensor in operation.inputs() {
            values.push(ValueId::of_tensor(tensor)?);
        }
        let inputs = values.len();
        for tensor in operation.outputs() {
            values.push(ValueId::of_tensor(tensor)?);
        }
        Some(Self { values, inputs })
    }
}

impl Node {
    /// Creates a node from an operation whose tensor ids are value ids; `None` when an id is out of range.
    pub(crate) fn new(operation: OperationIr) -> Option<Self> {
        let operands = Operands::of(&operation)?;
        Some(Self {
            operation,
            operands,
        })
    }

    /// Returns the values that it reads, in the operation's order; a value that is read twice is listed twice.
    pub fn inputs(&self) -> &[ValueId] {
        &self.operands.values[..self.operands.inputs]
    }

    /// Returns the values that it computes.
    pub fn outputs(&self) -> &[ValueId] {
        &self.operands.values[self.operands.inputs..]
    }

    /// Returns the operation's name, such as `Float.Matmul`.
    pub fn name(&self) -> String {
        operation_name(&self.operation)
    }
}
