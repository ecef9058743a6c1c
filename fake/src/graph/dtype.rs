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
        let mut change = Change {
            graph: self,
            builder: GraphBuilder::of_values(self),
            dtype,
            cast: HashMap::new(),
        };
        let mut ids = Vec::with_capacity(self.nodes().len());
        for id in self.node_ids() {
            ids.push(match nodes.contains(&id) {
                true => change.retype(self.node(id)).ok_or(id)?,
                // It reads values in their original dtypes.
                false => change.copy(self.node(id), |input| self.value(input).dtype),
            });
        }
        let graph = change.builder.finish();
        let graph = graph.expect("each value is computed before it is read, as in the original");
        Ok(Retyped { graph, nodes: ids })
    }
}

struct Change<'a> {
    graph: &'a Graph,
    builder: GraphBuilder,
    dtype: DType,
    /// The casts of values.
    cast: HashMap<(ValueId, DType), ValueId>,
}

impl Change<'_> {
    /// Adds an operation in the new dtype; `None` unless all of its tensors have one float dtype.
    fn retype(&mut self, node: &Node) -> Option<NodeId> {
        let operands = node.inputs().iter().chain(node.outputs());
        let mut dtypes = operands.map(|value| self.graph.value(*value).dtype);
        let first = dtypes.next().filter(DType::is_float)?;
        if dtypes.any(|dtype| dtype != first) {
            return None;
        }
        let mut node = node.clone();
        match &mut node.operation {
            OperationIr::NumericFloat(dtype, _) | OperationIr::Float(dtype, _) => {
                *dtype = self.dtype;
            }
            OperationIr::BaseFloat(_) => {}
            _ => return None,
        }
        for output in node.outputs() {
            self.builder.retype(*output, self.dtype);
        }
        let dtype = self.dtype;
        Some(self.copy(&node, |_| dtype))
    }

    /// Adds an operation that reads each input in the dtype of `dtype_of`.
    fn copy(&mut self, node: &Node, dtype_of: impl Fn(ValueId) -> DType) -> NodeId {
        let inputs = node.inputs().iter();
        let inputs = inputs.map(|input| self.as_dtype(*input, dtype_of(*input)));
        let inputs: Vec<ValueId> = inputs.collect();
        self.builder.copy(node, &inputs, node.outputs())
    }

    /// Returns a value in a dtype: a cast if it has another dtype.
    fn as_dtype(&mut self, value: ValueId, dtype: DType) -> ValueId {
        let input = self.builder.input(value);
        if input.dtype == dtype {
            return value;
        }
        if let Some(cast) = self.cast.get(&(value, dtype)) {
            return *cast;
        }
        let out = self.builder.output(input.shape.clone(), dtype);
        let cast = self.builder.id_of(&out);
        let operation = OperationIr::BaseFloat(BaseOperationIr::Cast(CastOpIr { input, out }));
        self.builder.node(operation);
        self.cast.insert((value, dtype), cast);
        cast
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
