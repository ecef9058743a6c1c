//! The operations of a graph.

use burn_ir::OperationIr;
use smallvec::SmallVec;

use crate::operation::{Operation, ValueId};

/// One recorded operation. Its tensor ids are the ids of [`ValueId`], and every status is
/// `ReadOnly` or `NotInit`: the executor of the graph decides which memory is reused.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Burn's operation, for code that executes it; all other code uses [`operation`](Self::operation()).
    pub operation: OperationIr,
    /// The inputs, followed by the outputs. Stored inline, because most operations have at most two inputs and an output.
    operands: SmallVec<[ValueId; 4]>,
    inputs: usize,
}

impl Node {
    /// Creates a node from an operation whose tensor ids are value ids; `None` when an id is out of range.
    pub(crate) fn new(operation: OperationIr) -> Option<Self> {
        let inputs = operation.inputs().map(ValueId::of_tensor);
        let mut operands = inputs.collect::<Option<SmallVec<_>>>()?;
        let inputs = operands.len();
        for output in operation.outputs() {
            operands.push(ValueId::of_tensor(output)?);
        }
        Some(Self {
            operation,
            operands,
            inputs,
        })
    }

    /// Returns the operation, without Burn's type.
    pub fn operation(&self) -> Operation<'_> {
        Operation::from(&self.operation)
    }

    /// Returns the values that it reads, in the operation's order; a value that is read twice is listed twice.
    pub fn inputs(&self) -> &[ValueId] {
        &self.operands[..self.inputs]
    }

    /// Returns the values that it computes.
    pub fn outputs(&self) -> &[ValueId] {
        &self.operands[self.inputs..]
    }

    /// Returns the operation's name, such as `Float.Matmul`.
    pub fn name(&self) -> String {
        self.operation().name()
    }
}
