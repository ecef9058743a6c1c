//! The memory layout of the results of operations, as `flex` runs them.
//!
//! The result of an operation that is not sliceable may depend on more than values: `flex` sums the
//! elements of a tensor in row-major order in another order than the elements of a view. Whether a value is a
//! view depends on its other uses, which differ from region to region. In a recipe such an
//! operation therefore reads row-major values only.

use tinderbox_fake::{Graph, ValueId};

use crate::program::is_view;

/// Returns whether a value is a view into memory that is larger than it.
pub(super) fn is_part_of_more(graph: &Graph, value: ValueId) -> bool {
    let bytes = graph.value(value).bytes();
    let mut at = value;
    while let Some(node) = graph.value(at).producer.map(|id| graph.node(id)) {
        if !is_view(&node.operation) {
            return false;
        }
        at = node.inputs()[0];
        if graph.value(at).bytes() > bytes {
            return true;
        }
    }
    false
}
