//! From Burn's captured operations to a graph with dense ids.

use std::collections::BTreeMap;

use burn_capture::CapturedGraph;
use burn_ir::{IrVisitorMut, OperationIr, TensorId, TensorIr, TensorStatus};

use super::{Constant, Graph, Node, NodeId, Operands, Value, ValueId};
use crate::RecordError;

/// A graph, and where each tensor of the recording went.
pub(crate) struct Built {
    pub(crate) graph: Graph,
    pub(crate) ids: DenseIds,
}

/// The tensors of a recording in recorded order: the position of one is its value's id.
///
/// Burn numbers tensors over the whole process, so the order of its ids within one recording is
/// the recorded order, and the same in every process; the ids themselves are not.
#[derive(Clone, Debug)]
pub(crate) struct DenseIds(Vec<TensorId>);

impl DenseIds {
    fn new(mut tensors: Vec<TensorId>) -> Self {
        // Nearly in order already, which this sort makes use of.
        tensors.sort();
        tensors.dedup();
        Self(tensors)
    }

    /// The value of a tensor; `None` for one of another recording.
    pub(crate) fn value_of(&self, id: TensorId) -> Option<ValueId> {
        let first = self.0.first()?.value();
        // Numbers are missing only where another thread made tensors meanwhile.
        let expected = usize::try_from(id.value().checked_sub(first)?).ok()?;
        if self.0.get(expected) == Some(&id) {
            return Some(ValueId::at(expected));
        }
        self.0.binary_search(&id).ok().map(ValueId::at)
    }
}

/// Gives every tensor and operation a dense id and makes the statuses neutral.
pub(crate) fn build(captured: CapturedGraph) -> Result<Built, RecordError> {
    let mut operations = captured.graph.operations;
    let count = operations.iter().filter(|op| is_recorded(op)).count();
    let mut tensors = Vec::with_capacity(captured.values.len() + count);
    tensors.extend(captured.values.keys().copied());
    for operation in operations.iter().filter(|op| is_recorded(op)) {
        for output in operation.outputs() {
            tensors.push(output.id);
        }
    }
    let ids = DenseIds::new(tensors);

    let mut values: Vec<Option<Value>> = vec![None; ids.0.len()];
    let mut constants = BTreeMap::new();
    for (id, data) in captured.values {
        let id = ids.value_of(id).expect("it was just listed");
        values[id.index()] = Some(Value {
            shape: data.shape().clone(),
            dtype: data.dtype(),
            producer: None,
        });
        constants.insert(id, Constant(data));
    }

    // Operations are large, so they are changed where they are and moved once.
    let mut all_operands = Vec::with_capacity(count);
    let mut renumber = Renumber {
        ids: &ids,
        foreign: false,
    };
    for operation in operations.iter_mut().filter(|op| is_recorded(op)) {
        operation.visit_mut(&mut renumber);
        let index = all_operands.len();
        if renumber.foreign {
            return Err(RecordError::Foreign {
                message: format!("operation {index}"),
            });
        }
        for output in operation.outputs() {
            values[output.id.value() as usize] = Some(Value {
                shape: output.shape.clone(),
                dtype: output.dtype,
                producer: Some(NodeId::at(index)),
            });
        }
        let operands = Operands::of(operation).expect("the ids were just made dense");
        all_operands.push(operands);
    }
    let mut all_operands = all_operands.into_iter();
    let mut nodes = Vec::with_capacity(count);
    for operation in operations {
        if is_recorded(&operation) {
            let operands = all_operands.next().expect("each operation has its own");
            nodes.push(Node {
                operation,
                operands,
            });
        }
    }
    let values = values
        .into_iter()
        .map(|value| value.expect("every tensor is a constant or an output"))
        .collect();
    // Burn records an operation after the operations that it reads, so nothing is left to check.
    let graph = Graph::assemble(nodes, values, constants);
    debug_assert!(graph.check().is_ok(), "{:?}", graph.check());
    Ok(Built { graph, ids })
}

/// Whether an operation computes something: what `Init` makes is a constant, and `Drop` frees.
fn is_recorded(operation: &OperationIr) -> bool {
    !matches!(operation, OperationIr::Init(_) | OperationIr::Drop(_))
}

struct Renumber<'a> {
    ids: &'a DenseIds,
    foreign: bool,
}

impl IrVisitorMut for Renumber<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        match self.ids.value_of(tensor.id) {
            Some(id) => tensor.id = TensorId::new(id.index() as u64),
            None => self.foreign = true,
        }
        if tensor.status == TensorStatus::ReadWrite {
            tensor.status = TensorStatus::ReadOnly;
        }
    }
}
