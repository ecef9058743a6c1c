//! Arithmetic, order and reductions, on floats and on integers.

use burn::tensor::kind::Ordered;
use burn::tensor::ops::PadMode;
use burn::tensor::{DType, Device, Tensor};

use crate::check::{Row, Rows, one, two, values};

type Unary<K, const D: usize> = fn(Tensor<2, K>) -> Tensor<D, K>;
type Along<K> = fn(Tensor<2, K>, usize) -> Tensor<2, K>;

/// Rows for one dtype.
pub(crate) fn rows<K: Ordered + 'static>(dtype: DType) -> Vec<Row> {
    let mut rows = arithmetic::<K>(dtype);
    rows.extend(order::<K>(dtype));
    rows.extend(reductions::<K>(dtype));
    rows
}

fn arithmetic<K: Ordered + 'static>(dtype: DType) -> Vec<Row> {
    let mut rows = Rows::new(&format!("arithmetic {dtype:?}"));
    let x = move |device: &Device, seed| values::<2, K>(device, dtype, [3, 4], seed);
    let row = move |device: &Device, seed| values::<2, K>(device, dtype, [1, 4], seed);
    type Binary<K> = fn(Tensor<2, K>, Tensor<2, K>) -> Tensor<2, K>;
    let binary: [(&str, Binary<K>); 5] = [
        ("add", Tensor::add),
        ("sub", Tensor::sub),
        ("mul", Tensor::mul),
        ("div", Tensor::div),
        ("remainder", Tensor::remainder),
    ];
    for (name, apply) in binary {
        rows.add(name, move |d| one(apply(x(d, 1), x(d, 2))));
        rows.add(&format!("{name}, broadcast on the left"), move |d| {
            one(apply(row(d, 1), x(d, 2)))
        });
        rows.add(&format!("{name}, broadcast on the right"), move |d| {
            one(apply(x(d, 1), row(d, 2)))
        });
        rows.add(&format!("{name}, with itself"), move |d| {
            let x = x(d, 1);
            one(apply(x.clone(), x))
        });
        rows.add(&format!("{name}, of views"), move |d| {
            one(apply(
                values::<2, K>(d, dtype, [4, 3], 1).transpose(),
                x(d, 2).flip([1]),
            ))
        });
    }
    let unary: [(&str, Unary<K, 2>); 13] = [
        ("add scalar", |x| x.add_scalar(3)),
        ("sub scalar", |x| x.sub_scalar(3)),
        ("mul scalar", |x| x.mul_scalar(3)),
        ("div scalar", |x| x.div_scalar(3)),
        ("remainder scalar", |x| x.remainder_scalar(3)),
        ("abs", Tensor::abs),
        ("clamp", |x| x.clamp(-1, 2)),
        ("clamp min", |x| x.clamp_min(1)),
        ("clamp max", |x| x.clamp_max(1)),
        ("powi scalar 3", |x| x.powi_scalar(3)),
        ("powi scalar 2", |x| x.powi_scalar(2)),
        ("neg", Tensor::neg),
        ("sign", Tensor::sign),
    ];
    for (name, apply) in unary {
        rows.add(name, move |d| one(apply(x(d, 1))));
    }
    rows.add("powi", move |d| one(x(d, 1).powi(x(d, 2).abs())));
    rows.add("matmul", move |d| one(x(d, 1).matmul(x(d, 2).transpose())));
    rows.add("matmul with itself", move |d| {
        let x = x(d, 1).slice([0..3, 0..3]);
        one(x.clone().matmul(x))
    });
    for (name, mode) in [
        ("constant", PadMode::Constant(2.0)),
        ("reflect", PadMode::Reflect),
        ("edge", PadMode::Edge),
    ] {
        rows.add(&format!("pad, {name}"), move |d| {
            one(x(d, 1).pad([(1, 2), (0, 1)], mode))
        });
    }
    rows.add("eye, triu", move |d| one(x(d, 1).triu(0) + x(d, 2).tril(1)));
    rows.done()
}

fn order<K: Ordered + 'static>(dtype: DType) -> Vec<Row> {
    let mut rows = Rows::new(&format!("order {dtype:?}"));
    let x = move |device: &Device, seed| values::<2, K>(device, dtype, [3, 5], seed);
    rows.add("greater", move |d| one(x(d, 1).greater(x(d, 2))));
    rows.add(
        "greater equal",
        move |d| one(x(d, 1).greater_equal(x(d, 2))),
    );
    rows.add("lower", move |d| one(x(d, 1).lower(x(d, 2))));
    rows.add("lower equal", move |d| one(x(d, 1).lower_equal(x(d, 2))));
    rows.add("greater scalar", move |d| one(x(d, 1).greater_scalar(1)));
    rows.add("greater equal scalar", move |d| {
        one(x(d, 1).greater_equal_scalar(1))
    });
    rows.add("lower scalar", move |d| one(x(d, 1).lower_scalar(1)));
    rows.add("lower equal scalar", move |d| {
        one(x(d, 1).lower_equal_scalar(1))
    });
    rows.add_positions(dtype, "argmax", move |d| one(x(d, 1).argmax(1)));
    rows.add_positions(dtype, "argmin", move |d| one(x(d, 1).argmin(0)));
    rows.add_positions(dtype, "argtopk", move |d| one(x(d, 1).argtopk(2, 1)));
    rows.add("topk", move |d| one(x(d, 1).topk(2, 1)));
    rows.add_positions(dtype, "topk with indices", move |d| {
        two(x(d, 1).topk_with_indices(3, 1))
    });
    rows.add_positions(dtype, "max dim with indices", move |d| {
        two(x(d, 1).max_dim_with_indices(0))
    });
    rows.add_positions(dtype, "min dim with indices", move |d| {
        two(x(d, 1).min_dim_with_indices(1))
    });
    rows.add("sort", move |d| one(x(d, 1).sort(1)));
    rows.add("sort descending", move |d| one(x(d, 1).sort_descending(0)));
    rows.add_positions(dtype, "sort with indices", move |d| {
        two(x(d, 1).sort_with_indices(1))
    });
    rows.add_positions(dtype, "the indices of a sort alone", move |d| {
        one(x(d, 1).sort_with_indices(1).1)
    });
    rows.add_positions(dtype, "argsort", move |d| one(x(d, 1).argsort(1)));
    rows.add("max pair", move |d| one(x(d, 1).max_pair(x(d, 2))));
    rows.done()
}

fn reductions<K: Ordered + 'static>(dtype: DType) -> Vec<Row> {
    let mut rows = Rows::new(&format!("reductions {dtype:?}"));
    let x = move |device: &Device, seed| values::<2, K>(device, dtype, [3, 5], seed);
    let whole: [(&str, Unary<K, 1>); 6] = [
        ("mean", Tensor::mean),
        ("sum", Tensor::sum),
        ("prod", Tensor::prod),
        ("max", Tensor::max),
        ("min", Tensor::min),
        ("max abs", Tensor::max_abs),
    ];
    for (name, apply) in whole {
        rows.add(name, move |d| one(apply(x(d, 1))));
        rows.add(&format!("{name}, of a view"), move |d| {
            one(apply(x(d, 1).slice([0..3, 1..4]).transpose()))
        });
    }
    let along: [(&str, Along<K>); 10] = [
        ("mean dim", Tensor::mean_dim),
        ("sum dim", Tensor::sum_dim),
        ("prod dim", Tensor::prod_dim),
        ("max dim", Tensor::max_dim),
        ("min dim", Tensor::min_dim),
        ("max abs dim", Tensor::max_abs_dim),
        ("cumsum", Tensor::cumsum),
        ("cumprod", Tensor::cumprod),
        ("cummin", Tensor::cummin),
        ("cummax", Tensor::cummax),
    ];
    for (name, apply) in along {
        for dim in 0..2 {
            rows.add(&format!("{name} {dim}"), move |d| one(apply(x(d, 1), dim)));
        }
    }
    rows.add("sum dims", move |d| {
        one(values::<3, K>(d, dtype, [2, 3, 4], 1).sum_dims(&[0, 2]))
    });
    rows.done()
}
