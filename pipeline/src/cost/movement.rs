//! Operations that move or describe data: views, copies, and selection by indices.
//!
//! **A view moves nothing.** Reshaping, swapping, permuting, flipping, expanding, slicing and
//! unfolding along an axis only make new strides over the same memory in Burn's CPU backend, so they
//! read and write nothing. On a backend that copies, the cost is that of the copy: `bytes` of the
//! result, read and written. So is a reshape of a tensor whose strides do not allow it.
//!
//! A selection reads its indices and what they select, never more than the whole table; an element
//! that is selected again is in the cache. Selecting takes no FLOPs. An update of a part takes one
//! FLOP per value that is added, multiplied or compared, and none for values that are put in place.
//! It is counted out of place, as Burn's semantics have it: the tensor is read and written whole. A
//! backend that owns the memory changes the part alone.

use burn_backend::tensor::IndexingUpdateOp;
use burn_ir::{
    BaseOperationIr, CatOpIr, EmbeddingBackwardOpIr, EmbeddingOpIr, GatherNdOpIr, GatherOpIr,
    RepeatDimOpIr, ScatterNdOpIr, ScatterOpIr, SelectAssignOpIr, SelectOpIr, TensorIr,
};

use super::count::{Count, OperationCost};
use super::elementwise::{binary, cast, per_element, scalar};
use super::size::elements;
use super::{creation, reduction};

/// The operations that all kinds of tensors share.
pub(super) fn base(operation: &BaseOperationIr) -> OperationCost {
    use BaseOperationIr as B;
    match operation {
        B::Reshape(_) | B::SwapDims(_) | B::Permute(_) | B::Flip(_) => view(),
        B::Expand(_) | B::Unfold(_) | B::Slice(_) => view(),
        B::SliceAssign(op) => copied([&op.tensor, &op.value], &op.out),
        B::Select(op) => op.count(),
        B::SelectAssign(op) => op.count(),
        B::Gather(op) => op.count(),
        B::GatherNd(op) => op.count(),
        B::Scatter(op) => op.count(),
        B::ScatterNd(op) => op.count(),
        B::MaskWhere(op) => per_element([&op.tensor, &op.mask, &op.value], &op.out, 1),
        B::MaskFill(op) => per_element([&op.tensor, &op.mask], &op.out, 1),
        B::Equal(op) | B::NotEqual(op) => binary(op, 1),
        B::EqualElem(op) | B::NotEqualElem(op) => scalar(op, 1),
        B::RepeatDim(op) => op.count(),
        B::Cat(op) => op.count(),
        B::Cast(op) => cast(op),
        B::Empty(_) => creation::empty(),
        B::Ones(op) | B::Zeros(op) => creation::filled(&op.out),
        B::All(op) | B::Any(op) => reduction::whole(op),
        B::AllDim(op) | B::AnyDim(op) => reduction::axis(op),
    }
}

/// A new description of the same memory.
fn view() -> OperationCost {
    OperationCost::default()
}

/// Inputs that are read whole, and a result that is written.
pub(super) fn copied<const N: usize>(inputs: [&TensorIr; N], out: &TensorIr) -> OperationCost {
    OperationCost::default().reads(inputs).writes([out])
}

/// As many elements of a table as the result has.
fn selected(table: &TensorIr, indices: &TensorIr, out: &TensorIr) -> OperationCost {
    OperationCost::default()
        .reads_selected(table, elements(out), &[indices])
        .writes([out])
}

/// A tensor with a part of it changed by values.
fn updated(
    tensors: [&TensorIr; 3],
    values: &TensorIr,
    update: IndexingUpdateOp,
    out: &TensorIr,
) -> OperationCost {
    let flops_per_value = match update {
        IndexingUpdateOp::Assign => 0,
        IndexingUpdateOp::Add
        | IndexingUpdateOp::Mul
        | IndexingUpdateOp::Min
        | IndexingUpdateOp::Max => 1,
    };
    OperationCost::of_flops(elements(values).saturating_mul(flops_per_value))
        .reads(tensors)
        .writes([out])
}

impl Count for GatherOpIr {
    fn count(&self) -> OperationCost {
        selected(&self.tensor, &self.indices, &self.out)
    }
}

impl Count for GatherNdOpIr {
    fn count(&self) -> OperationCost {
        selected(&self.data, &self.indices, &self.out)
    }
}

impl Count for SelectOpIr {
    fn count(&self) -> OperationCost {
        selected(&self.tensor, &self.indices, &self.out)
    }
}

/// The rows that the tokens name, not the whole vocabulary.
impl Count for EmbeddingOpIr {
    fn count(&self) -> OperationCost {
        selected(&self.weights, &self.indices, &self.out)
    }
}

/// One addition per element of the result's gradient, into a table of zeros. Of the weights only the
/// shape is read.
impl Count for EmbeddingBackwardOpIr {
    fn count(&self) -> OperationCost {
        OperationCost::of_flops(elements(&self.out_grad))
            .reads([&self.out_grad, &self.indices])
            .writes([&self.out])
    }
}

impl Count for ScatterOpIr {
    fn count(&self) -> OperationCost {
        let tensors = [&self.tensor, &self.indices, &self.value];
        updated(tensors, &self.value, self.update, &self.out)
    }
}

impl Count for ScatterNdOpIr {
    fn count(&self) -> OperationCost {
        let tensors = [&self.data, &self.indices, &self.values];
        updated(tensors, &self.values, self.reduction, &self.out)
    }
}

impl Count for SelectAssignOpIr {
    fn count(&self) -> OperationCost {
        let tensors = [&self.tensor, &self.indices, &self.value];
        updated(tensors, &self.value, self.update, &self.out)
    }
}

/// A copy for each repetition, from one reading; once is the tensor itself.
impl Count for RepeatDimOpIr {
    fn count(&self) -> OperationCost {
        if self.times == 1 {
            return view();
        }
        copied([&self.tensor], &self.out)
    }
}

/// A copy of all; of one tensor, it is the tensor itself.
impl Count for CatOpIr {
    fn count(&self) -> OperationCost {
        if self.tensors.len() == 1 {
            return view();
        }
        OperationCost::default()
            .reads(&self.tensors)
            .writes([&self.out])
    }
}

#[cfg(test)]
mod tests {
    use burn_backend::{BoolStore, DType, Shape, Slice};
    use burn_ir::{
        BaseOperationIr as B, FlipOpIr, MaskFillOpIr, MaskWhereOpIr, ModuleOperationIr,
        NumericOperationIr, OperationIr, PadModeIr, PadOpIr, PermuteOpIr, ScalarIr, ShapeOpIr,
        SliceAssignOpIr, SliceOpIr, SwapDimsOpIr, UnfoldOpIr,
    };

    use super::*;
    use crate::cost::fixture::{check, indices, output, tensor, tensor_of};

    const NOTHING: (u64, u64, u64) = (0, 0, 0);

    fn slices() -> Vec<Slice> {
        vec![Slice::new(1, Some(3), 1), Slice::full()]
    }

    #[test]
    fn views_move_nothing() {
        let x = || tensor(0, &[4, 6]);
        let views = [
            B::Reshape(ShapeOpIr::reshape(x(), Shape::new([24]), output)),
            B::Expand(ShapeOpIr::expand(
                tensor(0, &[4, 1]),
                Shape::new([4, 9]),
                output,
            )),
            B::SwapDims(SwapDimsOpIr::create(x(), 0, 1, output)),
            B::Permute(PermuteOpIr::create(x(), vec![1, 0], output)),
            B::Flip(FlipOpIr::create(x(), vec![0], output)),
            B::Unfold(UnfoldOpIr::create(x(), 1, 3, 1, output)),
            B::Slice(SliceOpIr::create(x(), slices(), output)),
            B::RepeatDim(RepeatDimOpIr::create(x(), 0, 1, output)),
            B::Cat(CatOpIr::create(vec![x()], 0, output)),
        ];
        for view in views {
            check(OperationIr::BaseFloat(view.clone()), NOTHING);
            check(OperationIr::BaseInt(view.clone()), NOTHING);
            check(OperationIr::BaseBool(view), NOTHING);
        }
    }

    #[test]
    fn copies_read_and_write() {
        let x = tensor(0, &[4, 6]);
        let repeat = RepeatDimOpIr::create(x.clone(), 0, 3, output);
        check(OperationIr::BaseFloat(B::RepeatDim(repeat)), (0, 96, 288));
        let cat = CatOpIr::create(vec![x.clone(), tensor(1, &[2, 6])], 0, output);
        check(OperationIr::BaseFloat(B::Cat(cat)), (0, 96 + 48, 144));
        let twice = CatOpIr::create(vec![x.clone(), x.clone()], 0, output);
        check(OperationIr::BaseFloat(B::Cat(twice)), (0, 96, 192));
        let assign = SliceAssignOpIr::create(x.clone(), slices(), tensor(1, &[2, 6]), output);
        check(
            OperationIr::BaseFloat(B::SliceAssign(assign)),
            (0, 96 + 48, 96),
        );
        let pad = PadOpIr::create(x, vec![(1, 1), (0, 2)], PadModeIr::Edge, output);
        let pad = NumericOperationIr::Pad(pad);
        check(
            OperationIr::NumericFloat(DType::F32, pad),
            (0, 96, 6 * 8 * 4),
        );
    }

    #[test]
    fn a_selection_reads_what_it_selects() {
        let table = tensor(0, &[100, 8]);
        let select = SelectOpIr::create(table.clone(), 0, indices(1, &[5]), output);
        check(
            OperationIr::BaseFloat(B::Select(select)),
            (0, 5 * 8 + 5 * 8 * 4, 160),
        );
        let gather = GatherOpIr::create(table.clone(), 0, indices(1, &[3, 8]), output);
        check(
            OperationIr::BaseFloat(B::Gather(gather)),
            (0, 24 * 8 + 24 * 4, 96),
        );
        // Four index pairs.
        let gather = GatherNdOpIr::create(table.clone(), indices(1, &[4, 2]), output);
        check(
            OperationIr::BaseFloat(B::GatherNd(gather)),
            (0, 64 + 16, 16),
        );
        // More rows than the table has: it is read once.
        let select = SelectOpIr::create(table, 0, indices(1, &[1000]), output);
        check(
            OperationIr::BaseFloat(B::Select(select)),
            (0, 8000 + 3200, 32_000),
        );
    }

    #[test]
    fn an_embedding_reads_the_rows_of_its_tokens() {
        let (weights, tokens) = (tensor(0, &[50_000, 16]), indices(1, &[2, 7]));
        let embedding = EmbeddingOpIr::create(weights.clone(), tokens.clone(), output);
        let operation = OperationIr::Module(ModuleOperationIr::Embedding(embedding));
        check(operation, (0, 14 * 8 + 14 * 16 * 4, 14 * 16 * 4));
        let gradient = tensor(2, &[2, 7, 16]);
        let backward = EmbeddingBackwardOpIr::create(weights, gradient, tokens, output);
        let operation = OperationIr::Module(ModuleOperationIr::EmbeddingBackward(backward));
        check(operation, (224, 224 * 4 + 14 * 8, 50_000 * 16 * 4));
    }

    #[test]
    fn an_update_takes_a_flop_per_value_unless_it_assigns() {
        let x = tensor(0, &[10, 4]);
        let (places, values) = (indices(1, &[3, 4]), tensor(2, &[3, 4]));
        let read = 160 + 96 + 48;
        for (update, flops) in [
            (IndexingUpdateOp::Assign, 0),
            (IndexingUpdateOp::Add, 12),
            (IndexingUpdateOp::Mul, 12),
            (IndexingUpdateOp::Min, 12),
            (IndexingUpdateOp::Max, 12),
        ] {
            let (x, places, values) = (x.clone(), places.clone(), values.clone());
            let scatter = ScatterOpIr::create(x, 0, places, values, update, output);
            check(
                OperationIr::BaseFloat(B::Scatter(scatter)),
                (flops, read, 160),
            );
        }
        let add = IndexingUpdateOp::Add;
        let rows = indices(1, &[3]);
        let assign = SelectAssignOpIr::create(x.clone(), 0, rows, values.clone(), add, output);
        check(
            OperationIr::BaseFloat(B::SelectAssign(assign)),
            (12, 160 + 24 + 48, 160),
        );
        let scatter = ScatterNdOpIr::create(x, indices(1, &[3, 1]), values, add, output);
        check(
            OperationIr::BaseFloat(B::ScatterNd(scatter)),
            (12, 160 + 24 + 48, 160),
        );
    }

    #[test]
    fn a_mask_is_an_operation_per_element() {
        let mask = || tensor_of(1, &[4, 6], DType::Bool(BoolStore::Native));
        let x = tensor(0, &[4, 6]);
        let fill = MaskFillOpIr::create(x.clone(), mask(), ScalarIr::Float(0.0), output);
        check(OperationIr::BaseFloat(B::MaskFill(fill)), (24, 96 + 24, 96));
        let choose = MaskWhereOpIr::create(x, mask(), tensor(2, &[1, 6]), output);
        check(
            OperationIr::BaseFloat(B::MaskWhere(choose)),
            (24, 96 + 24 + 24, 96),
        );
    }
}
