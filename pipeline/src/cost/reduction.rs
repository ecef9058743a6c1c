//! Reductions, running sums and sorting.
//!
//! A reduction takes one FLOP per element that it reads: `n` values need `n - 1` additions or
//! comparisons, and counting `n` keeps sums over parts equal to the sum over the whole. A mean
//! divides each result once more. A running sum is one FLOP per element, as if done in order; a
//! parallel scan does about twice that (Blelloch, *Prefix Sums and Their Applications*, 1990).
//!
//! Sorting rows of `n` takes `n ceil(log2 n)` comparisons: merge sort's bound (Knuth, *The Art of
//! Computer Programming*, vol. 3, 5.2.4). The largest `k` are counted as a sort too, which is how
//! Burn finds them unless a backend knows better.

use burn_ir::{
    DimOpIr, ReduceDimOpIr, ReduceDimWithIndicesOpIr, ReduceDimsOpIr, ReduceOpIr, SortOpIr,
    SortWithIndicesOpIr, TensorIr, TopKWithIndicesOpIr,
};

use super::count::{Count, OperationCost};
use super::elementwise::per_element;
use super::size::{axis_length, elements};

/// Some FLOPs per element of the input, with the input read and the outputs written.
pub(super) fn reduced(
    input: &TensorIr,
    out: &[&TensorIr],
    flops_per_element: u64,
) -> OperationCost {
    OperationCost::of_flops(elements(input).saturating_mul(flops_per_element))
        .reads([input])
        .writes(out.iter().copied())
}

/// All elements to one.
pub(super) fn whole(operation: &ReduceOpIr) -> OperationCost {
    reduced(&operation.input, &[&operation.out], 1)
}

/// The elements of an axis to one.
pub(super) fn axis(operation: &ReduceDimOpIr) -> OperationCost {
    reduced(&operation.input, &[&operation.out], 1)
}

/// The elements of several axes to one.
pub(super) fn axes(operation: &ReduceDimsOpIr) -> OperationCost {
    reduced(&operation.input, &[&operation.out], 1)
}

/// A mean: a sum, and a division of each result.
pub(super) fn mean(input: &TensorIr, out: &TensorIr) -> OperationCost {
    reduced(input, &[out], 1) + OperationCost::of_flops(elements(out))
}

/// The largest magnitude: an absolute value and a comparison.
pub(super) fn magnitude(input: &TensorIr, out: &TensorIr) -> OperationCost {
    reduced(input, &[out], 2)
}

/// A running sum, product, minimum or maximum.
pub(super) fn cumulative(operation: &DimOpIr) -> OperationCost {
    per_element([&operation.input], &operation.out, 1)
}

/// The largest `k` of each row.
pub(super) fn largest(operation: &ReduceDimOpIr) -> OperationCost {
    sorted(&operation.input, operation.axis, &[&operation.out])
}

/// Rows in order, or a part of what that gives.
fn sorted(input: &TensorIr, axis: usize, out: &[&TensorIr]) -> OperationCost {
    reduced(
        input,
        out,
        comparisons_per_element(axis_length(input, axis)),
    )
}

/// `ceil(log2 n)` for rows of `n`, none where there is nothing to compare.
fn comparisons_per_element(length: u64) -> u64 {
    match length {
        0 | 1 => 0,
        _ => u64::from(u64::BITS - (length - 1).leading_zeros()),
    }
}

impl Count for SortOpIr {
    fn count(&self) -> OperationCost {
        sorted(&self.input, self.dim, &[&self.out])
    }
}

impl Count for SortWithIndicesOpIr {
    fn count(&self) -> OperationCost {
        sorted(&self.input, self.dim, &[&self.out, &self.out_indices])
    }
}

impl Count for TopKWithIndicesOpIr {
    fn count(&self) -> OperationCost {
        sorted(&self.tensor, self.dim, &[&self.out, &self.out_indices])
    }
}

impl Count for ReduceDimWithIndicesOpIr {
    fn count(&self) -> OperationCost {
        reduced(&self.tensor, &[&self.out, &self.out_indices], 1)
    }
}

#[cfg(test)]
mod tests {
    use burn_backend::{BoolStore, DType};
    use burn_ir::{BaseOperationIr, NumericOperationIr as N, OperationIr, TensorId};

    use super::*;
    use crate::cost::fixture::{check, output, tensor, tensor_of};

    fn numeric(operation: N) -> OperationIr {
        OperationIr::NumericFloat(DType::F32, operation)
    }

    fn ids() -> impl FnMut() -> TensorId {
        let mut next = 100;
        move || {
            next += 1;
            TensorId::new(next)
        }
    }

    #[test]
    fn sums_take_an_addition_per_element() {
        let x = tensor(0, &[3, 4, 5]);
        let sum = ReduceOpIr::create(x.clone(), output);
        check(numeric(N::Sum(sum)), (60, 240, 4));
        let sum = ReduceDimOpIr::create(x.clone(), 1, 1, output);
        check(numeric(N::SumDim(sum)), (60, 240, 60));
        let sum = ReduceDimsOpIr::create(x, vec![0, 2], output);
        check(numeric(N::SumDims(sum)), (60, 240, 16));
    }

    #[test]
    fn means_divide_and_magnitudes_look_twice() {
        let x = tensor(0, &[3, 4]);
        let mean = ReduceDimOpIr::create(x.clone(), 1, 1, output);
        check(numeric(N::MeanDim(mean)), (12 + 3, 48, 12));
        let mean = ReduceOpIr::create(x.clone(), output);
        check(numeric(N::Mean(mean)), (12 + 1, 48, 4));
        let largest = ReduceOpIr::create(x, output);
        check(numeric(N::MaxAbs(largest)), (24, 48, 4));
    }

    #[test]
    fn positions_are_written_as_indices() {
        let x = tensor(0, &[3, 4]);
        let largest = ReduceDimOpIr::create_arg(x.clone(), 1, 1, DType::I64, output);
        check(numeric(N::ArgMax(largest)), (12, 48, 24));
        let largest = ReduceDimWithIndicesOpIr::create(x, 1, DType::I64, ids());
        check(numeric(N::MaxDimWithIndices(largest)), (12, 48, 12 + 24));
    }

    #[test]
    fn truth_is_reduced_like_numbers() {
        let dtype = DType::Bool(BoolStore::Native);
        let all = ReduceDimOpIr::create_bool(tensor_of(0, &[6, 4], dtype), 0, 1, dtype, output);
        check(
            OperationIr::BaseBool(BaseOperationIr::AllDim(all)),
            (24, 24, 4),
        );
    }

    #[test]
    fn running_sums_write_every_element() {
        let sum = DimOpIr::create(tensor(0, &[3, 7]), 1, output);
        check(numeric(N::CumSum(sum)), (21, 84, 84));
    }

    #[test]
    fn sorting_takes_a_logarithm_of_the_row() {
        for (length, logarithm) in [(1, 0), (2, 1), (8, 3), (9, 4), (1024, 10)] {
            let n = length as u64;
            let sort = SortOpIr::create(tensor(0, &[3, length, 2]), 1, false, output);
            check(numeric(N::Sort(sort)), (6 * n * logarithm, 24 * n, 24 * n));
        }
        let x = tensor(0, &[5, 16]);
        let sort = SortOpIr::create_arg(x.clone(), 1, true, DType::I32, output);
        check(numeric(N::ArgSort(sort)), (320, 320, 320));
        let sort = SortWithIndicesOpIr::create(x.clone(), 1, true, DType::I64, ids());
        check(numeric(N::SortWithIndices(sort)), (320, 320, 320 + 640));
        let largest = TopKWithIndicesOpIr::create(x.clone(), 1, 2, DType::I64, ids());
        check(numeric(N::TopKWithIndices(largest)), (320, 320, 40 + 80));
        let largest = ReduceDimOpIr::create(x, 1, 2, output);
        check(numeric(N::TopK(largest)), (320, 320, 40));
    }

    #[test]
    fn nothing_is_reduced_to_something() {
        let sum = ReduceOpIr::create(tensor(0, &[3, 0]), output);
        check(numeric(N::Sum(sum)), (0, 0, 4));
        let sort = SortOpIr::create(tensor(0, &[3, 0]), 1, false, output);
        check(numeric(N::Sort(sort)), (0, 0, 0));
    }
}
