//! The part of a graph that a set of values depends on.

use std::collections::BTreeSet;

use super::Graph;
use crate::operation::{NodeId, ValueId};

/// The part of a graph that computes some values: the nodes in recorded order, and the leaves at which
/// the search stopped (constants and given values).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Nodes, in recorded order.
    pub nodes: Vec<NodeId>,
    /// Given values and constants that the nodes read, in recorded order, each once.
    pub leaves: Vec<ValueId>,
}

impl Graph {
    /// Returns the nodes that `targets` depend on. The search stops at values for which `given` returns true.
    ///
    /// A target that is given or constant is a leaf. Cost: proportional to the size of the result.
    pub fn backward_slice(
        &self,
        targets: impl IntoIterator<Item = ValueId>,
        given: impl Fn(ValueId) -> bool,
    ) -> Slice {
        let mut nodes = BTreeSet::new();
        let mut leaves = BTreeSet::new();
        let mut wanted: Vec<ValueId> = targets.into_iter().collect();
        while let Some(value) = wanted.pop() {
            match self.value(value).producer {
                Some(node) if !given(value) => {
                    if nodes.insert(node) {
                        wanted.extend(self.node(node).inputs());
                    }
                }
                _ => {
                    leaves.insert(value);
                }
            }
        }
        let nodes = nodes.into_iter().collect();
        let leaves = leaves.into_iter().collect();
        Slice { nodes, leaves }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Tensor;

    use crate::{RecordOptions, record};

    #[test]
    fn contains_what_is_needed_and_stops_at_given_values() {
        let (ids, recording) = record(&RecordOptions::default(), |device| {
            let a = Tensor::<1>::zeros([4], device);
            let b = Tensor::<1>::from_floats([1.0, 2.0, 3.0, 4.0], device);
            let c = a.clone() + b.clone();
            let unused = b.clone().exp();
            let d = c.clone().exp();
            [a, b, c, d, unused].map(|t| crate::DynTensor::from(t).captured_id().unwrap())
        })
        .unwrap();
        let [a, b, c, d, _] = ids.map(|id| recording.value_of(id).unwrap());
        let graph = recording.graph();
        let all = graph.backward_slice([d], |_| false);
        assert_eq!(all.nodes.len(), 3, "zeros, add, exp");
        assert_eq!(all.leaves, [b]);
        let cut = graph.backward_slice([d], |v| v == c);
        assert_eq!(cut.nodes.len(), 1, "exp");
        assert_eq!(cut.leaves, [c]);
        assert_eq!(graph.backward_slice([a], |v| v == a).nodes, []);
    }
}
