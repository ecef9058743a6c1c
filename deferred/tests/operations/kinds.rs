//! Operations of floats, integers or bools only, and casts.

use burn::tensor::ops::{GridSampleOptions, GridSamplePaddingMode, InterpolateMode};
use burn::tensor::{
    Bool, BoolDType, DType, Device, Float, FloatDType, Int, IntDType, Tensor, TensorData,
};

use crate::check::{Row, Rows, bools, floats, ints, one, values};

type Unary = fn(Tensor<2>) -> Tensor<2>;

const FLOATS: [FloatDType; 4] = [
    FloatDType::F64,
    FloatDType::F32,
    FloatDType::F16,
    FloatDType::BF16,
];
const INTS: [IntDType; 8] = [
    IntDType::I64,
    IntDType::I32,
    IntDType::I16,
    IntDType::I8,
    IntDType::U64,
    IntDType::U32,
    IntDType::U16,
    IntDType::U8,
];

/// Infinities, NaN, zeros of both signs and the ends of the range, then ordinary numbers.
fn special(device: &Device, dtype: DType) -> Tensor<2> {
    let values = vec![
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -0.0,
        f32::MIN_POSITIVE,
        f32::MAX,
        1.0,
        -1.0,
        0.5,
        2.5,
        -3.5,
    ];
    Tensor::from_data(TensorData::new(values, [3, 4]), (device, dtype))
}

/// Rows for floats of one dtype.
pub(crate) fn float_rows(dtype: DType) -> Vec<Row> {
    let mut rows = Rows::new(&format!("float {dtype:?}"));
    let x = move |device: &Device, seed| values::<2, Float>(device, dtype, [3, 4], seed);
    let unary: [(&str, Unary); 29] = [
        ("exp", Tensor::exp),
        ("log", Tensor::log),
        ("log1p", Tensor::log1p),
        ("erf", Tensor::erf),
        ("powf scalar", |x| x.powf_scalar(1.5)),
        ("powf scalar, whole", |x| x.powf_scalar(3.0)),
        ("sqrt", Tensor::sqrt),
        ("cos", Tensor::cos),
        ("cosh", Tensor::cosh),
        ("sin", Tensor::sin),
        ("sinh", Tensor::sinh),
        ("tan", Tensor::tan),
        ("tanh", Tensor::tanh),
        ("acos", Tensor::acos),
        ("acosh", Tensor::acosh),
        ("asin", Tensor::asin),
        ("asinh", Tensor::asinh),
        ("atan", Tensor::atan),
        ("atanh", Tensor::atanh),
        ("round", Tensor::round),
        ("floor", Tensor::floor),
        ("ceil", Tensor::ceil),
        ("trunc", Tensor::trunc),
        ("recip", Tensor::recip),
        ("square", Tensor::<2>::square),
        ("fmod scalar", |x| x.fmod_scalar(0.75)),
        ("neg", Tensor::neg),
        ("abs", Tensor::abs),
        ("sign", Tensor::sign),
    ];
    for (name, apply) in unary {
        rows.add(name, move |d| one(apply(x(d, 1))));
        rows.add(&format!("{name}, special"), move |d| {
            one(apply(special(d, dtype)))
        });
    }
    rows.add("atan2", move |d| one(x(d, 1).atan2(x(d, 2))));
    rows.add("powf", move |d| one(x(d, 1).abs().powf(x(d, 2))));
    rows.add("hypot", move |d| one(x(d, 1).hypot(x(d, 2))));
    rows.add("is nan", move |d| one(special(d, dtype).is_nan()));
    rows.add("is inf", move |d| one(special(d, dtype).is_inf()));
    rows.add("is finite", move |d| one(special(d, dtype).is_finite()));
    rows.add("cross", move |d| {
        let x = |seed| values::<2, Float>(d, dtype, [4, 3], seed);
        one(x(1).cross(x(2), 1))
    });
    rows.add("matmul of batches", move |d| {
        let x = values::<3, Float>(d, dtype, [2, 3, 4], 1);
        one(x.matmul(values::<3, Float>(d, dtype, [1, 4, 5], 2)))
    });
    rows.add("int", move |d| one(x(d, 1).int()));
    rows.done()
}

/// Rows for sampling on a grid.
pub(crate) fn grid_rows() -> Vec<Row> {
    let mut rows = Rows::new("grid sample");
    for padding in [
        GridSamplePaddingMode::Zeros,
        GridSamplePaddingMode::Border,
        GridSamplePaddingMode::Reflection,
    ] {
        for align_corners in [false, true] {
            rows.add(
                &format!("{padding:?}, align corners {align_corners}"),
                move |d| {
                    let options = GridSampleOptions::new(InterpolateMode::Bilinear)
                        .with_padding_mode(padding)
                        .with_align_corners(align_corners);
                    let image = floats(d, [1, 2, 4, 5], 1);
                    one(image.grid_sample_2d(floats(d, [1, 3, 3, 2], 2), options))
                },
            );
        }
    }
    rows.done()
}

/// Rows for integers of one dtype.
pub(crate) fn int_rows(dtype: DType) -> Vec<Row> {
    let mut rows = Rows::new(&format!("int {dtype:?}"));
    let x = move |device: &Device, seed| values::<2, Int>(device, dtype, [3, 4], seed);
    let shift = move |device: &Device| x(device, 2).abs().remainder_scalar(5);
    rows.add("and", move |d| one(x(d, 1).bitwise_and(x(d, 2))));
    rows.add("or", move |d| one(x(d, 1).bitwise_or(x(d, 2))));
    rows.add("xor", move |d| one(x(d, 1).bitwise_xor(x(d, 2))));
    rows.add("not", move |d| one(x(d, 1).bitwise_not()));
    rows.add("and scalar", move |d| one(x(d, 1).bitwise_and_scalar(3)));
    rows.add("or scalar", move |d| one(x(d, 1).bitwise_or_scalar(3)));
    rows.add("xor scalar", move |d| one(x(d, 1).bitwise_xor_scalar(3)));
    rows.add("left shift", move |d| {
        one(x(d, 1).bitwise_left_shift(shift(d)))
    });
    rows.add("right shift", move |d| {
        one(x(d, 1).bitwise_right_shift(shift(d)))
    });
    rows.add("left shift scalar", move |d| {
        one(x(d, 1).bitwise_left_shift_scalar(2))
    });
    rows.add("right shift scalar", move |d| {
        one(x(d, 1).bitwise_right_shift_scalar(2))
    });
    rows.add("square", move |d| one(x(d, 1).square()));
    // If the input is i32, Burn does not record the cast, because its positions are i32 already.
    rows.add("positions as i32", move |d| {
        let positions = x(d, 1).argmax(1).cast(IntDType::I32);
        one(positions * Tensor::from_ints([[2], [3], [4]], d))
    });
    rows.done()
}

/// Rows for bools.
pub(crate) fn bool_rows() -> Vec<Row> {
    let mut rows = Rows::new("bool");
    rows.add("not", |d| one(bools(d, [3, 4], 1).bool_not()));
    rows.add("and", |d| {
        one(bools(d, [3, 4], 1).bool_and(bools(d, [3, 4], 2)))
    });
    rows.add("or", |d| {
        one(bools(d, [3, 4], 1).bool_or(bools(d, [3, 4], 2)))
    });
    rows.add("xor", |d| {
        one(bools(d, [3, 4], 1).bool_xor(bools(d, [3, 4], 2)))
    });
    rows.add("selected, read by others", |d| {
        let selected = bools(d, [3, 4], 1).select(0, ints(d, [3], &[2, 0, 2]));
        vec![
            selected.clone().int().into(),
            selected.clone().float().into(),
            floats(d, [3, 4], 2).mask_fill(selected, 9.0).into(),
        ]
    });
    rows.add("masks", |d| {
        let tril = Tensor::<2, Bool>::tril_mask([3, 3], 0, d);
        one(tril.bool_and(Tensor::diag_mask([3, 3], 0, d)))
    });
    rows.done()
}

/// Rows for casts between all dtypes.
pub(crate) fn cast_rows() -> Vec<Row> {
    let mut rows = Rows::new("cast");
    for to in FLOATS {
        for from in FLOATS {
            rows.add(&format!("{from:?} to {to:?}"), move |d| {
                one(special(d, from.into()).cast(to))
            });
        }
        for from in INTS {
            rows.add(&format!("{from:?} to {to:?}"), move |d| {
                one(values::<2, Int>(d, from.into(), [3, 4], 1).cast(to))
            });
        }
        rows.add(&format!("bool to {to:?}"), move |d| {
            one(bools(d, [3, 4], 1).cast(to))
        });
    }
    for to in INTS {
        for from in FLOATS {
            rows.add(&format!("{from:?} to {to:?}"), move |d| {
                one(values::<2, Float>(d, from.into(), [3, 4], 1).cast(to))
            });
        }
        for from in INTS {
            rows.add(&format!("{from:?} to {to:?}"), move |d| {
                one(values::<2, Int>(d, from.into(), [3, 4], 1).cast(to))
            });
        }
        rows.add(&format!("bool to {to:?}"), move |d| {
            one(bools(d, [3, 4], 1).cast(to))
        });
    }
    rows.add("bool to the default int and float", |d| {
        let x = bools(d, [3, 4], 1);
        vec![x.clone().int().into(), x.float().into()]
    });
    rows.add("bool stored in bytes", |d| {
        let stored = DType::from(BoolDType::U8);
        one(values::<2, Bool>(d, stored, [3, 4], 1).bool_not())
    });
    rows.done()
}
