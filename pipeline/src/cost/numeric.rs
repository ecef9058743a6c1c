//! The operations that float and int tensors share, by the way that they are counted.

use burn_ir::NumericOperationIr;

use super::count::{Count, OperationCost};
use super::elementwise::{binary, clamp, scalar, unary};
use super::{creation, movement, reduction};

/// One FLOP per element of the result, unless the room that an arm names says more.
pub(super) fn numeric(operation: &NumericOperationIr) -> OperationCost {
    use NumericOperationIr as N;
    match operation {
        N::Add(op) | N::Sub(op) | N::Mul(op) | N::Div(op) | N::Rem(op) => binary(op, 1),
        N::Powi(op) | N::Greater(op) | N::GreaterEqual(op) => binary(op, 1),
        N::Lower(op) | N::LowerEqual(op) => binary(op, 1),
        N::AddScalar(op) | N::SubScalar(op) | N::MulScalar(op) => scalar(op, 1),
        N::DivScalar(op) | N::RemScalar(op) | N::PowiScalar(op) => scalar(op, 1),
        N::GreaterElem(op) | N::GreaterEqualElem(op) => scalar(op, 1),
        N::LowerElem(op) | N::LowerEqualElem(op) => scalar(op, 1),
        N::ClampMin(op) | N::ClampMax(op) => scalar(op, 1),
        N::Clamp(op) => clamp(op),
        N::Abs(op) | N::Neg(op) | N::Sign(op) => unary(op, 1),
        N::Full(op) => creation::filled(&op.out),
        N::IntRandom(op) => creation::random(op),
        N::Sum(op) | N::Prod(op) | N::Max(op) | N::Min(op) => reduction::whole(op),
        N::SumDim(op) | N::ProdDim(op) | N::MaxDim(op) | N::MinDim(op) => reduction::axis(op),
        N::ArgMax(op) | N::ArgMin(op) => reduction::axis(op),
        N::SumDims(op) => reduction::axes(op),
        N::Mean(op) => reduction::mean(&op.input, &op.out),
        N::MeanDim(op) => reduction::mean(&op.input, &op.out),
        N::MaxAbs(op) => reduction::magnitude(&op.input, &op.out),
        N::MaxAbsDim(op) => reduction::magnitude(&op.input, &op.out),
        N::MaxDimWithIndices(op) | N::MinDimWithIndices(op) => op.count(),
        N::CumSum(op) | N::CumProd(op) | N::CumMin(op) | N::CumMax(op) => reduction::cumulative(op),
        N::TopK(op) | N::ArgTopK(op) => reduction::largest(op),
        N::TopKWithIndices(op) => op.count(),
        N::Sort(op) | N::ArgSort(op) => op.count(),
        N::SortWithIndices(op) => op.count(),
        N::Pad(op) => movement::copied([&op.input], &op.out),
    }
}
