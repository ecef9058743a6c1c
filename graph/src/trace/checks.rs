//! Checks of recorded forwards for behaviour that a pipeline would compute differently from plain Burn.

use std::collections::BTreeSet;

use burn::tensor::DType;
use tinderbox_fake::{Difference, Graph, NodeId, ValueId};
use twox_hash::XxHash3_128;

use super::JointGraph;
use super::outputs::LossOver;
use crate::TraceError;

/// Refuses a forward that reads random values of the constructor that are not parameters: every
/// construction of the model draws others. The constructor's operations are those before
/// `forward_start`.
pub(super) fn check_fields(
    graph: &Graph,
    forward_start: usize,
    tensor_fields: impl Fn() -> Vec<String>,
) -> Result<(), TraceError> {
    let forward = graph.node_ids().skip(forward_start);
    let read = forward.flat_map(|id| graph.node(id).inputs());
    let of_constructor = |value: &&ValueId| {
        let producer = graph.producer(**value);
        producer.is_some_and(|node| node.index() < forward_start)
    };
    let fields: BTreeSet<ValueId> = read.filter(of_constructor).copied().collect();
    for field in fields {
        let nodes = graph.backward_slice([field], |_| false).nodes;
        let is_random = |id: &NodeId| graph.node(*id).operation().random().is_some();
        if let Some(node) = nodes.into_iter().find(is_random) {
            return Err(TraceError::RandomField {
                fields: tensor_fields(),
                operation: graph.describe(node),
            });
        }
    }
    Ok(())
}

impl JointGraph {
    /// Refuses a count that depends on a parameter, since the weights of micro-batches are computed
    /// before a step, and one that is computed from 16-bit floats, to which mixed precision casts the
    /// floats of a batch.
    pub(super) fn check_count(&self) -> Result<(), TraceError> {
        let LossOver::Count(count) = self.loss_over() else {
            return Ok(());
        };
        let is_parameter = |value| self.parameter_of(value).is_some();
        let slice = self.graph().backward_slice([*count], is_parameter);
        let nodes = slice.nodes.iter();
        let made = nodes.flat_map(|id| self.graph().node(*id).outputs());
        let mut dtypes = made.map(|value| self.graph().value(*value).dtype);
        if let Some(dtype) = dtypes.find(|dtype| matches!(dtype, DType::F16 | DType::BF16)) {
            return Err(TraceError::CountType { dtype });
        }
        let mut leaves = slice.leaves.into_iter();
        match leaves.find_map(|leaf| self.parameter_of(leaf)) {
            Some(position) => Err(TraceError::CountOnParameter {
                path: self.parameter(position).path.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Checks that a second recording of the same forward is equal.
    ///
    /// # Errors
    ///
    /// [`TraceError::UnstableForward`] with the first operation, constant or output that differs.
    pub(super) fn check_same(&self, again: &Self) -> Result<(), TraceError> {
        if let Some(difference) = self.graph().difference(again.graph()) {
            return Err(TraceError::UnstableForward {
                place: self.place_of(&difference),
                difference,
            });
        }
        let mut outputs = self.outputs().iter().zip(again.outputs());
        let name = match outputs.find(|(before, now)| before != now) {
            Some(((name, _), _)) => name.clone(),
            None if self.values == again.values && self.marks == again.marks => return Ok(()),
            None => "loss".into(),
        };
        Err(TraceError::UnstableOutput { name })
    }

    /// A hash of everything that [`check_same`](Self::check_same) compares.
    pub(super) fn digest(&self) -> u128 {
        let text = format!("{:?} {:?}", self.values, self.marks);
        let graph = self.graph().digest();
        XxHash3_128::oneshot(&[&graph.to_le_bytes(), text.as_bytes()].concat())
    }

    /// Whether a difference is in the constructor, the forward or the backward.
    fn place_of(&self, difference: &Difference) -> &'static str {
        let Difference::Operation { number, .. } = difference else {
            return "forward";
        };
        let node = self.graph().node_ids().nth(number - 1);
        match node {
            Some(node) if self.is_initialization(node) => "constructor",
            Some(node) if self.is_backward(node) => "backward",
            _ => "forward",
        }
    }
}
