//! The memory layout of the results of operations, as `flex` runs them.
//!
//! The result of an operation that is not sliceable may depend on more than values: `flex` sums the
//! elements of a tensor in row-major order in another order than the elements of a view. Whether a value is a
//! view depends on its other uses, which differ from region to region. In a recipe such an
//! operation therefore reads row-major values only.

use burn_ir::{BaseOperationIr, FloatOperationIr, NumericOperationIr, OperationIr};
use tinderbox_fake::{Graph, ValueId};

use super::rules::is_elementwise;
use crate::program::{base, is_view, random};

/// Returns whether the result is certainly in row-major order without gaps, given whether each of the inputs is.
pub(super) fn is_row_major(
    operation: &OperationIr,
    inputs: impl IntoIterator<Item = bool>,
) -> bool {
    use BaseOperationIr as B;
    use NumericOperationIr as N;
    if random(operation).is_some() {
        return true;
    }
    let mut inputs = inputs.into_iter();
    if is_elementwise(operation) {
        return inputs.all(|input| input);
    }
    match operation {
        OperationIr::Float(_, FloatOperationIr::Matmul(_))
        | OperationIr::NumericFloat(_, N::Sum(_) | N::SumDim(_) | N::Mean(_) | N::MeanDim(_)) => {
            true
        }
        _ => match base(operation) {
            // A value in another order is copied when it is reshaped.
            Some(B::Reshape(_) | B::Zeros(_) | B::Ones(_) | B::Cat(_)) => true,
            Some(B::SliceAssign(_)) => inputs.next().unwrap_or(true),
            _ => false,
        },
    }
}

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
