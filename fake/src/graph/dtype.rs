//! Operations of a graph in another float dtype.

use std::collections::{BTreeSet, HashMap};

use burn::tensor::DType;
use burn_ir::{BaseOperationIr, CastOpIr, OperationIr};

use super::{Graph, GraphBuilder, Node};
use crate::operation::{NodeId, ValueId};

/// A graph in which some operations have another dtype than in the original graph.
#[derive(Clone, Debug)]
pub struct Retyped {
    /// The graph. Values have the ids that they had; the ids of the casts come after them.
    pub graph: Graph,
    /// The id of each operation of the original graph.
    pub nodes: Vec<NodeId>,
}

impl Graph {
    /// Returns a graph in which some operations compute in `dtype` instead of the float dtype of their outputs.
    /// Inputs from other operations are cast to `dtype`, and outputs for other operations are cast back.
    ///
    /// # Errors
    ///
    /// Returns the first operation whose inputs and outputs do not all have one float dtype.
    pub fn with_dtype(&self, nodes: &BTreeSet<NodeId>, dtype: DType) -> Result<Retyped, NodeId> {
        let mut builder = GraphBuilder::of_values(self);
        let mut casts: HashMap<(ValueId, DType), ValueId> = HashMap::new();
        let mut ids = Vec::with_capacity(self.nodes().len());
        for id in self.node_ids() {
            let node = self.node(id);
            let is_changed = nodes.contains(&id);
            let retyped = match is_changed {
                true => Some(self.retyped(node, dtype).ok_or(id)?),
                false => None,
            };
            let operation = retyped.as_ref().unwrap_or(&node.operation);
            for output in node.outputs().iter().filter(|_| is_changed) {
                builder.retype(*output, dtype);
            }
            let mut inputs = node.inputs().to_vec();
            for read in &mut inputs {
                let dtype = match is_changed {
                    true => dtype,
                    // It reads values in their original dtypes.
                    false => self.value(*read).dtype,
                };
                let input = builder.input(*read);
                if input.dtype != dtype {
                    let cast = casts.entry((*read, dtype)).or_insert_with(|| {
                        builder.add(input.shape.clone(), dtype, |out| {
                            OperationIr::BaseFloat(BaseOperationIr::Cast(CastOpIr { input, out }))
                        })
                    });
                    *read = *cast;
                }
            }
            ids.push(builder.copy(operation, &inputs, node.outputs()));
        }
        let graph = builder.finish();
        let graph = graph.expect("each value is computed before it is read, as in the original");
        Ok(Retyped { graph, nodes: ids })
    }

    /// Returns an operation in a new dtype; `None` unless all of its tensors have one float dtype.
    fn retyped(&self, node: &Node, dtype: DType) -> Option<OperationIr> {
        let operands = node.inputs().iter().chain(node.outputs());
        let mut dtypes = operands.map(|value| self.value(*value).dtype);
        let first = dtypes.next().filter(DType::is_float)?;
        if dtypes.any(|dtype| dtype != first) {
            return None;
        }
        let mut operation = node.operation.clone();
        match &mut operation {
            OperationIr::NumericFloat(own, _) | OperationIr::Float(own, _) => *own = dtype,
            OperationIr::BaseFloat(_) => {}
            _ => return None,
        }
        Some(operation)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Tensor;

    use super::*;
    use crate::{RecordOptions, record};

    /// Two operations of four in another dtype: the value from outside is cast once, the value that another operation
    /// reads is cast back.
    #[test]
    fn casts_where_dtypes_meet() {
        let (ids, recording) = record(&RecordOptions::default(), |device| {
            let x = Tensor::<1>::zeros([2], (device, DType::BF16));
            let y = Tensor::<1>::ones([2], (device, DType::BF16)) * 3.0;
            let sum = x * 2.0 + y;
            let read = sum.clone() - 1.0;
            [sum, read].map(|tensor| crate::DynTensor::from(tensor).captured_id().unwrap())
        })
        .unwrap();
        let graph = recording.graph();
        let [sum, read] = ids.map(|id| recording.value_of(id).unwrap());
        let add = graph.value(sum).producer.unwrap();
        let scaled = graph.node(add).inputs()[0];
        let scale = graph.value(scaled).producer.unwrap();
        let zeros = graph.value(graph.node(scale).inputs()[0]).producer.unwrap();
        let nodes = BTreeSet::from([zeros, scale, add]);
        let retyped = graph.with_dtype(&nodes, DType::F32).unwrap();
        insta::assert_snapshot!(retyped.graph, @r#"
        #0 = BaseFloat.Zeros() -> %0: f32[2]
        #1 = BaseFloat.Ones() -> %1: bf16[2]
        #2 = NumericFloat.MulScalar(%1) -> %2: bf16[2]
        #3 = NumericFloat.MulScalar(%0) -> %3: f32[2]
        #4 = BaseFloat.Cast(%2) -> %6: f32[2]
        #5 = NumericFloat.Add(%3, %6) -> %4: f32[2]
        #6 = BaseFloat.Cast(%4) -> %7: bf16[2]
        #7 = NumericFloat.SubScalar(%7) -> %5: bf16[2]
        "#);
        assert_eq!(retyped.graph.value(read).dtype, DType::BF16);
        assert_eq!(retyped.nodes.len(), graph.nodes().len());
    }

    #[test]
    fn operations_of_several_dtypes_are_refused() {
        let (id, recording) = record(&RecordOptions::default(), |device| {
            let x = Tensor::<1>::zeros([2], device).greater_elem(1.0);
            crate::DynTensor::from(x).captured_id().unwrap()
        })
        .unwrap();
        let graph = recording.graph();
        let node = graph
            .value(recording.value_of(id).unwrap())
            .producer
            .unwrap();
        let refused = graph.with_dtype(&BTreeSet::from([node]), DType::F64);
        assert_eq!(refused.unwrap_err(), node);
    }
}
