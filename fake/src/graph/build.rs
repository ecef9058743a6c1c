//! From Burn's captured operations to a graph with dense ids.

use burn_capture::CapturedGraph;
use burn_ir::{IrVisitorMut, OperationIr, TensorId, TensorIr, TensorStatus};

use super::{Constant, Graph, Node, NodeId, Operands, Value, ValueId};
use crate::{ErrorOrigin, RecordError};

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
    let mut made = Vec::with_capacity(captured.values.len() + count);
    for (id, data) in &captured.values {
        let value = Value {
            shape: data.shape().clone(),
            dtype: data.dtype(),
            producer: None,
        };
        made.push((*id, value));
    }
    for (index, operation) in operations.iter().filter(|op| is_recorded(op)).enumerate() {
        for output in operation.outputs() {
            let value = Value {
                shape: output.shape.clone(),
                dtype: output.dtype,
                producer: Some(NodeId::at(index)),
            };
            made.push((output.id, value));
        }
    }
    // Nearly in order already, which this sort makes use of.
    made.sort_by_key(|(id, _)| *id);
    let (ids, values): (Vec<TensorId>, Vec<Value>) = made.into_iter().unzip();
    let ids = DenseIds(ids);

    // Operations are large, so they are changed where they are and moved once.
    let mut renumber = Renumber {
        ids: &ids,
        foreign: false,
    };
    for (index, operation) in operations.iter_mut().enumerate() {
        if is_recorded(operation) {
            operation.visit_mut(&mut renumber);
        }
        if renumber.foreign {
            return Err(RecordError::Foreign {
                message: format!("operation {index}"),
                origin: ErrorOrigin::default(),
            });
        }
    }
    let mut nodes = Vec::with_capacity(count);
    for operation in operations {
        if is_recorded(&operation) {
            let operands = Operands::of(&operation).expect("the ids were just made dense");
            nodes.push(Node {
                operation,
                operands,
            });
        }
    }
    let constants = captured.values.into_iter().map(|(id, data)| {
        let id = ids.value_of(id).expect("it was just listed");
        (id, Constant::from(data))
    });
    // Burn records an operation after the operations that it reads, so nothing is left to check.
    let graph = Graph::assemble(nodes, values, constants.collect());
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
