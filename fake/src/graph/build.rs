//! Builds a graph with dense ids from Burn's captured operations.

use burn_capture::CapturedGraph;
use burn_ir::{OperationIr, TensorId, TensorStatus};

use super::{Constant, Graph, Node, Value};
use crate::operation::{NodeId, ValueId, change_tensors};
use crate::{ErrorOrigin, RecordError};

/// A graph, and the value of each tensor of the recording.
pub(crate) struct Built {
    pub(crate) graph: Graph,
    pub(crate) ids: DenseIds,
}

/// The tensors of a recording in recorded order: the index of a tensor is the id of its value.
///
/// Burn numbers tensors over the whole process, so sorting its ids within one recording gives
/// the recorded order, which is the same in every process, unlike the ids.
#[derive(Clone, Debug)]
pub(crate) struct DenseIds(Vec<TensorId>);

impl DenseIds {
    /// Returns the value of a tensor; `None` for a tensor of another recording.
    pub(crate) fn value_of(&self, id: TensorId) -> Option<ValueId> {
        let first = self.0.first()?.value();
        // Ids are skipped only if another thread created tensors meanwhile.
        let expected = usize::try_from(id.value().checked_sub(first)?).ok()?;
        if self.0.get(expected) == Some(&id) {
            return Some(ValueId::at(expected));
        }
        self.0.binary_search(&id).ok().map(ValueId::at)
    }
}

/// Assigns a dense id to every tensor and operation, and resets the statuses.
pub(crate) fn build(captured: CapturedGraph) -> Result<Built, RecordError> {
    let mut operations = captured.graph.operations;
    let count = operations.iter().filter(|op| is_recorded(op)).count();
    let mut made = Vec::with_capacity(captured.values.len() + count);
    for (id, data) in &captured.values {
        made.push((*id, Value::new(data.shape().clone(), data.dtype(), None)));
    }
    for (index, operation) in operations.iter().filter(|op| is_recorded(op)).enumerate() {
        for output in operation.outputs() {
            let producer = Some(NodeId::at(index));
            let value = Value::new(output.shape.clone(), output.dtype, producer);
            made.push((output.id, value));
        }
    }
    // Nearly sorted already, which this sort exploits.
    made.sort_by_key(|(id, _)| *id);
    let (ids, values): (Vec<TensorId>, Vec<Value>) = made.into_iter().unzip();
    let ids = DenseIds(ids);

    // Operations are large, so they are changed in place and moved once.
    for (index, operation) in operations.iter_mut().enumerate() {
        if !is_recorded(operation) {
            continue;
        }
        let mut is_foreign = false;
        change_tensors(operation, |tensor| {
            match ids.value_of(tensor.id) {
                Some(id) => tensor.id = TensorId::new(id.index() as u64),
                None => is_foreign = true,
            }
            if tensor.status == TensorStatus::ReadWrite {
                tensor.status = TensorStatus::ReadOnly;
            }
        });
        if is_foreign {
            let (message, origin) = (format!("operation {index}"), ErrorOrigin::default());
            return Err(RecordError::Foreign { message, origin });
        }
    }
    let mut nodes = Vec::with_capacity(count);
    for operation in operations {
        if is_recorded(&operation) {
            nodes.push(Node::new(operation).expect("the ids are dense"));
        }
    }
    let constants = captured.values.into_iter().map(|(id, data)| {
        let value = ids.value_of(id);
        let value = value.expect("the list has every tensor of the operations");
        (value, Constant::from(data))
    });
    // Burn records an operation after the producers of its inputs, so the check can't fail.
    let graph = Graph::assemble(nodes, values, constants.collect());
    debug_assert!(graph.check().is_ok(), "{:?}", graph.check());
    Ok(Built { graph, ids })
}

/// Returns whether an operation computes something: `Init` creates a constant, and `Drop` frees.
fn is_recorded(operation: &OperationIr) -> bool {
    !matches!(operation, OperationIr::Init(_) | OperationIr::Drop(_))
}
