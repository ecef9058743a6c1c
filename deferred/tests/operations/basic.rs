//! Operations on tensors of every kind: shapes, indices, comparison, creation.

use burn::tensor::kind::{Basic, Ordered};
use burn::tensor::{DType, Device, IndexingUpdateOp, Slice, Tensor};

use crate::check::{Row, Rows, bools, ints, one, values};

const UPDATES: [IndexingUpdateOp; 5] = [
    IndexingUpdateOp::Assign,
    IndexingUpdateOp::Add,
    IndexingUpdateOp::Mul,
    IndexingUpdateOp::Min,
    IndexingUpdateOp::Max,
];

/// Rows for tensors of any kind.
pub(crate) fn rows<K: Basic + 'static>(dtype: DType) -> Vec<Row> {
    let mut rows = shapes::<K>(dtype);
    rows.extend(contents::<K>(dtype));
    rows
}

fn shapes<K: Basic + 'static>(dtype: DType) -> Vec<Row> {
    let mut rows = Rows::new(&format!("shape {dtype:?}"));
    let x = move |device: &Device, seed| values::<2, K>(device, dtype, [3, 4], seed);
    rows.add("reshape", move |d| one(x(d, 1).reshape([2, 6])));
    rows.add("swap dims", move |d| one(x(d, 1).swap_dims(0, 1)));
    rows.add("transpose, of a view", move |d| {
        one(x(d, 1).slice([1..3, 0..4]).transpose().reshape([8]))
    });
    rows.add("permute", move |d| {
        one(values::<3, K>(d, dtype, [2, 3, 4], 1).permute([2, 0, 1]))
    });
    rows.add("flip", move |d| one(x(d, 1).flip([0, 1])));
    rows.add("expand", move |d| {
        one(values::<2, K>(d, dtype, [1, 4], 1).expand([3, 4]))
    });
    rows.add("unfold", move |d| one(x(d, 1).unfold::<3, _>(1, 2, 1)));
    rows.add("slice", move |d| one(x(d, 1).slice([1..3, 0..2])));
    rows.add("slice with steps", move |d| {
        let every_second = Slice::new(0, Some(4), 2);
        let backward = Slice::new(0, Some(3), -1);
        one(x(d, 1).slice([backward, every_second]))
    });
    rows.add("slice assign", move |d| {
        one(x(d, 1).slice_assign([1..3, 0..4], x(d, 2).slice([0..2, 0..4])))
    });
    rows.add("slice fill", move |d| {
        one(x(d, 1).slice_fill([0..2, 1..2], 1))
    });
    rows.done()
}

fn contents<K: Basic + 'static>(dtype: DType) -> Vec<Row> {
    let mut rows = Rows::new(&format!("contents {dtype:?}"));
    let x = move |device: &Device, seed| values::<2, K>(device, dtype, [3, 4], seed);
    // The only update that bools support.
    rows.add("select assign, add", move |d| {
        let indices = ints(d, [2], &[2, 0]);
        one(x(d, 1).select_assign(
            0,
            indices,
            x(d, 2).slice_dim(0, 0..2),
            IndexingUpdateOp::Add,
        ))
    });
    rows.add("scatter, add", move |d| {
        let indices = ints(d, [3, 2], &[0, 3, 1, 1, 2, 0]);
        let values = values::<2, K>(d, dtype, [3, 2], 2);
        one(x(d, 1).scatter(1, indices, values, IndexingUpdateOp::Add))
    });
    rows.add("mask where", move |d| {
        one(x(d, 1).mask_where(bools(d, [3, 4], 3), x(d, 2)))
    });
    rows.add("mask fill", move |d| {
        one(x(d, 1).mask_fill(bools(d, [3, 4], 3), 1))
    });
    rows.add("equal", move |d| one(x(d, 1).equal(x(d, 2))));
    rows.add("equal to itself", move |d| one(x(d, 1).equal(x(d, 1))));
    rows.add("not equal", move |d| one(x(d, 1).not_equal(x(d, 2))));
    rows.add("equal scalar", move |d| one(x(d, 1).equal_scalar(1)));
    rows.add(
        "not equal scalar",
        move |d| one(x(d, 1).not_equal_scalar(1)),
    );
    rows.add("repeat dim", move |d| one(x(d, 1).repeat_dim(1, 3)));
    rows.add("cat", move |d| {
        one(Tensor::cat(vec![x(d, 1), x(d, 2), x(d, 1)], 1))
    });
    rows.add("stack and chunk", move |d| {
        let stacked = Tensor::stack::<3>(vec![x(d, 1), x(d, 2)], 1);
        stacked.chunk(2, 2).into_iter().map(Into::into).collect()
    });
    rows.add("zeros", move |d| {
        one(Tensor::<2, K>::zeros([3, 2], (d, dtype)))
    });
    rows.add("ones", move |d| {
        one(Tensor::<2, K>::ones([3, 2], (d, dtype)))
    });
    // The contents of an empty tensor are undefined, so it is filled before it is read.
    rows.add("empty", move |d| {
        one(Tensor::<2, K>::empty([3, 4], (d, dtype)).slice_assign([0..3, 0..4], x(d, 1)))
    });
    rows.add("full", move |d| {
        one(Tensor::<2, K>::full([3, 2], 1, (d, dtype)))
    });
    rows.add("any and all", move |d| {
        let x = x(d, 1).mask_fill(bools(d, [3, 4], 3), 0);
        vec![
            x.clone().any().into(),
            x.clone().all().into(),
            x.clone().any_dim(1).into(),
            x.all_dim(0).into(),
        ]
    });
    rows.done()
}

/// Rows for tensors of numbers.
pub(crate) fn number_rows<K: Ordered + 'static>(dtype: DType) -> Vec<Row> {
    let mut rows = Rows::new(&format!("indices {dtype:?}"));
    let x = move |device: &Device, seed| values::<2, K>(device, dtype, [3, 4], seed);
    for update in UPDATES {
        rows.add(&format!("select assign, {update:?}"), move |d| {
            let indices = ints(d, [2], &[2, 0]);
            one(x(d, 1).select_assign(0, indices, x(d, 2).slice_dim(0, 0..2), update))
        });
        rows.add(&format!("scatter, {update:?}"), move |d| {
            let indices = ints(d, [3, 2], &[0, 3, 1, 2, 2, 0]);
            let values = values::<2, K>(d, dtype, [3, 2], 2);
            one(x(d, 1).scatter(1, indices, values, update))
        });
        rows.add(&format!("scatter nd, {update:?}"), move |d| {
            let indices = ints(d, [2, 1], &[2, 0]);
            one(x(d, 1).scatter_nd(indices, x(d, 2).slice_dim(0, 0..2), update))
        });
    }
    rows.add("select", move |d| {
        one(x(d, 1).select(0, ints(d, [4], &[2, 0, 2, 1])))
    });
    rows.add("gather", move |d| {
        one(x(d, 1).gather(1, ints(d, [3, 2], &[0, 3, 1, 1, 2, 0])))
    });
    rows.add("gather nd", move |d| {
        one(x(d, 1).gather_nd::<2, 1>(ints(d, [3, 2], &[2, 1, 0, 0, 1, 3])))
    });
    rows.done()
}
