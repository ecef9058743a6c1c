//! From Burn's captured operations to a graph with dense ids.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use burn_capture::CapturedGraph;
use burn_ir::{IrVisitorMut, OperationIr, TensorId, TensorIr, TensorStatus};

use super::{Constant, Graph, Node, NodeId, Value, ValueId};
use crate::RecordError;

/// A graph, and where each tensor of the recording went.
pub(crate) struct Built {
    pub(crate) graph: Graph,
    pub(crate) ids: HashMap<TensorId, ValueId>,
}

/// Gives every tensor and operation a dense id and makes the statuses neutral.
///
/// Burn numbers tensors over the whole process, so the order of its ids within one recording is
/// the recorded order, and the same in every process; the ids themselves are not.
pub(crate) fn build(captured: CapturedGraph) -> Result<Built, RecordError> {
    let mut operations = captured.graph.operations;
    operations.retain(|op| !matches!(op, OperationIr::Init(_) | OperationIr::Drop(_)));
    let tensors: BTreeSet<TensorId> = captured
        .values
        .keys()
        .copied()
        .chain(operations.iter().flat_map(|op| op.outputs().map(|t| t.id)))
        .collect();
    let ids: HashMap<TensorId, ValueId> = tensors
        .iter()
        .enumerate()
        .map(|(index, id)| (*id, ValueId::at(index)))
        .collect();

    let mut values: Vec<Option<Value>> = vec![None; tensors.len()];
    let mut constants = BTreeMap::new();
    for (id, data) in captured.values {
        let id = ids[&id];
        values[id.index()] = Some(Value {
            shape: data.shape().clone(),
            dtype: data.dtype(),
            producer: None,
        });
        constants.insert(id, Constant(data));
    }

    let mut nodes = Vec::with_capacity(operations.len());
    for (index, mut operation) in operations.into_iter().enumerate() {
        for output in operation.outputs() {
            values[ids[&output.id].index()] = Some(Value {
                shape: output.shape.clone(),
                dtype: output.dtype,
                producer: Some(NodeId::at(index)),
            });
        }
        let mut renumber = Renumber {
            ids: &ids,
            foreign: false,
        };
        operation.visit_mut(&mut renumber);
        if renumber.foreign {
            return Err(RecordError::Foreign {
                message: format!("operation {index}"),
            });
        }
        nodes.push(Node::new(operation).expect("the ids were just made dense"));
    }
    let values = values
        .into_iter()
        .map(|value| value.expect("every tensor is a constant or an output"))
        .collect();
    let graph = Graph::new(nodes, values, constants)
        .expect("Burn records an operation after the operations that it reads");
    Ok(Built { graph, ids })
}

struct Renumber<'a> {
    ids: &'a HashMap<TensorId, ValueId>,
    foreign: bool,
}

impl IrVisitorMut for Renumber<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        match self.ids.get(&tensor.id) {
            Some(id) => tensor.id = TensorId::new(id.index() as u64),
            None => self.foreign = true,
        }
        if tensor.status == TensorStatus::ReadWrite {
            tensor.status = TensorStatus::ReadOnly;
        }
    }
}
