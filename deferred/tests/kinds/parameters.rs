//! Kinds of parameters, and their initialization.

use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig, LinearLayout};
use burn::tensor::{Bool, Device, Distribution, Int, Tensor, TensorData};
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{Rng, independent_copy};

use crate::check::{flex, hold, input, kind};

const NORMAL: Distribution = Distribution::Normal(0.0, 1.0);

/// A lazy parameter of two draws.
fn lazy(shape: [usize; 2], device: &Device) -> Param<Tensor<2>> {
    Param::uninitialized(
        ParamId::new(),
        move |device, trainable| {
            let draw = || Tensor::random(shape, NORMAL, device);
            (draw() + draw() * 0.5).set_require_grad(trainable)
        },
        device.clone(),
        true,
        shape.into(),
    )
}

#[derive(Module, Debug)]
struct Kinds {
    table: Param<Tensor<2>>,
    lazy_rows: Param<Tensor<1, Int>>,
    rows: Param<Tensor<1, Int>>,
    lazy_mask: Param<Tensor<2, Bool>>,
    mask: Param<Tensor<2, Bool>>,
}

#[test]
fn int_and_bool_parameters() {
    kind(
        |device| Kinds {
            table: lazy([4, 2], device),
            lazy_rows: Param::uninitialized(
                ParamId::new(),
                |device, _| Tensor::random([3], Distribution::Uniform(0.0, 4.0), device),
                device.clone(),
                false,
                [3].into(),
            ),
            rows: Param::initialized(
                ParamId::new(),
                Tensor::random([3], Distribution::Uniform(0.0, 3.0), device),
            ),
            lazy_mask: Param::uninitialized(
                ParamId::new(),
                |device, _| {
                    Tensor::<2>::random([3, 2], Distribution::Default, device).greater_scalar(0.25)
                },
                device.clone(),
                false,
                [3, 2].into(),
            ),
            mask: Param::initialized(
                ParamId::new(),
                Tensor::from_bool([[true, false], [false, false], [false, true]], device),
            ),
        },
        &[
            "table: float f32 [4, 2], trainable, lazy",
            "lazy_rows: int i32 [3], fixed, lazy",
            "rows: int i32 [3], fixed, eager",
            "lazy_mask: bool bool [3, 2], fixed, lazy",
            "mask: bool bool [3, 2], fixed, eager",
        ],
        |kinds, _| {
            let x = kinds.table.val().select(0, kinds.lazy_rows.val());
            let x = x.select(0, kinds.rows.val());
            let x = x.mask_fill(kinds.lazy_mask.val(), 0.5);
            x.mask_fill(kinds.mask.val(), -0.5)
        },
    )
    .check();
}

#[derive(Module, Debug)]
struct Three {
    first: Param<Tensor<2>>,
    second: Param<Tensor<2>>,
    third: Param<Tensor<2>>,
}

fn product(three: &Three, device: &Device) -> Tensor<2> {
    let x = input([2, 2], device).matmul(three.first.val());
    x.matmul(three.second.val()).matmul(three.third.val())
}

#[test]
fn eager_parameters() {
    let model = kind(
        |device| {
            let draw = Tensor::<2>::random([2, 2], NORMAL, device);
            Three {
                first: Param::from_tensor(draw.clone().exp()),
                second: Param::from_data([[1.0f32, 2.0], [3.0, 4.0]], device),
                // From the same draw, and not trainable.
                third: Param::initialized(ParamId::new(), draw * 2.0),
            }
        },
        &[
            "first: float f32 [2, 2], trainable, eager",
            "second: float f32 [2, 2], trainable, eager",
            "third: float f32 [2, 2], fixed, eager",
        ],
        product,
    )
    .check();
    assert_eq!(model.parameters().eager_bytes(), 3 * 16);
}

#[test]
fn lazy_parameters_of_your_own() {
    kind(
        |device| Three {
            first: lazy([2, 2], device),
            second: lazy([2, 2], device).init_mapper(|value| value.tanh()),
            third: lazy([2, 2], device).set_require_grad(false),
        },
        &[
            "first: float f32 [2, 2], trainable, lazy",
            "second: float f32 [2, 2], trainable, lazy",
            "third: float f32 [2, 2], fixed, lazy",
        ],
        product,
    )
    .check();
}

#[derive(Module, Debug)]
struct Tied {
    embedding: Param<Tensor<2>>,
    hidden: Linear,
}

#[test]
fn one_parameter_read_twice() {
    kind(
        |device| Tied {
            embedding: lazy([3, 2], device),
            hidden: LinearConfig::new(2, 2).init(device),
        },
        &[
            "embedding: float f32 [3, 2], trainable, lazy",
            "hidden.weight: float f32 [2, 2], trainable, lazy",
            "hidden.bias: float f32 [2], trainable, lazy",
        ],
        |tied, device| {
            let x = input([2, 3], device).matmul(tied.embedding.val());
            tied.hidden
                .forward(x)
                .matmul(tied.embedding.val().transpose())
        },
    )
    .check();
}

#[test]
fn clones_of_a_lazy_parameter() {
    let model = kind(
        |device| {
            let first = lazy([2, 2], device);
            Three {
                second: first.clone(),
                third: first.clone(),
                first,
            }
        },
        &[
            "first: float f32 [2, 2], trainable, lazy",
            "second: float f32 [2, 2], trainable, lazy, clone of first",
            "third: float f32 [2, 2], trainable, lazy, clone of first",
        ],
        product,
    )
    .check();
    assert_eq!(model.parameters().bytes(), 16, "one value for all");
}

#[test]
fn clones_of_an_eager_parameter() {
    kind(
        |device| {
            let first = Param::from_tensor(Tensor::random([2, 2], NORMAL, device));
            Three {
                second: first.clone().set_require_grad(false),
                third: first.clone(),
                first,
            }
        },
        &[
            "first: float f32 [2, 2], trainable, eager",
            "second: float f32 [2, 2], fixed, eager, clone of first",
            "third: float f32 [2, 2], trainable, eager, clone of first",
        ],
        product,
    )
    .check();
}

/// A copy has the values of the original, ids of its own, and its own training state: frozen copies do not freeze the
/// original.
#[test]
fn independent_copies() {
    let model = kind(
        |device| {
            let first = lazy([2, 2], device);
            let eager = Param::from_tensor(Tensor::random([2, 2], NORMAL, device));
            Pairs {
                frozen: independent_copy(&first).no_grad(),
                changed: independent_copy(&first).init_mapper(|value| value * 2.0),
                first,
                of_eager: independent_copy(&eager),
                eager,
                rows: LinearConfig::new(2, 2)
                    .with_layout(LinearLayout::Col)
                    .init(device),
                of_rows: None,
            }
            .with_copied_rows()
        },
        &[
            "frozen: float f32 [2, 2], fixed, lazy",
            "changed: float f32 [2, 2], trainable, lazy",
            "first: float f32 [2, 2], trainable, lazy",
            "of_eager: float f32 [2, 2], trainable, eager",
            "eager: float f32 [2, 2], trainable, eager",
            "rows.weight: float f32 [2, 2], trainable, lazy",
            "rows.bias: float f32 [2], trainable, lazy",
            "of_rows.weight: float f32 [2, 2], trainable, lazy",
            "of_rows.bias: float f32 [2], trainable, lazy",
        ],
        |pairs, device| {
            let x = input([2, 2], device).matmul(pairs.frozen.val());
            let x = x
                .matmul(pairs.changed.val())
                .matmul(pairs.first.val())
                .matmul(pairs.of_eager.val())
                .matmul(pairs.eager.val());
            let copied = pairs.of_rows.as_ref().unwrap();
            copied.forward(pairs.rows.forward(x))
        },
    )
    .check();
    assert_eq!(model.shared_id(), None);
    let _held = hold();
    for source in [
        model.initializer(Seed::new(3)),
        model.initializer(Seed::new(3)).with_rng(Rng::Backend),
    ] {
        let made = model.materialize(&flex().autodiff(), &source).unwrap();
        let data = |param: &Param<Tensor<2>>| param.val().into_data();
        let copied = made.of_rows.as_ref().unwrap();
        assert_eq!(data(&made.frozen), data(&made.first));
        assert_eq!(
            data(&made.changed),
            (made.first.val() * 2.0).detach().into_data()
        );
        assert_eq!(data(&made.of_eager), data(&made.eager));
        assert_eq!(data(&copied.weight), data(&made.rows.weight));
    }
}

#[derive(Module, Debug)]
struct Pairs {
    frozen: Param<Tensor<2>>,
    changed: Param<Tensor<2>>,
    first: Param<Tensor<2>>,
    of_eager: Param<Tensor<2>>,
    eager: Param<Tensor<2>>,
    rows: Linear,
    of_rows: Option<Linear>,
}

impl Pairs {
    fn with_copied_rows(self) -> Self {
        Self {
            of_rows: Some(independent_copy(&self.rows)),
            ..self
        }
    }
}

/// A clone that was changed shares the id, but not the value.
#[test]
fn clones_that_were_changed() {
    let model = kind(
        |device| {
            let first = Param::from_tensor(Tensor::random([2, 2], NORMAL, device));
            let changed = first.clone().map(|value| (value * 2.0).detach());
            Three {
                second: changed.clone(),
                third: changed,
                first,
            }
        },
        &[
            "first: float f32 [2, 2], trainable, eager",
            "second: float f32 [2, 2], fixed, eager",
            "third: float f32 [2, 2], fixed, eager, clone of second",
        ],
        product,
    )
    .check();
    assert_eq!(model.parameters().bytes(), 32);
}

#[derive(Module, Debug)]
struct Columns {
    row: Linear,
    col: Linear,
}

#[test]
fn linear_layers_in_column_layout() {
    let kind = kind(
        |device| Columns {
            row: LinearConfig::new(2, 3).init(device),
            col: LinearConfig::new(3, 2)
                .with_layout(LinearLayout::Col)
                .init(device),
        },
        &[
            "row.weight: float f32 [2, 3], trainable, lazy",
            "row.bias: float f32 [3], trainable, lazy",
            "col.weight: float f32 [3, 2], trainable, lazy",
            "col.bias: float f32 [2], trainable, lazy",
        ],
        |columns, device| {
            let x = columns.row.forward(input([2, 2], device));
            columns.col.forward(x)
        },
    );
    let make = kind.make;
    let model = kind.check();
    let _held = hold();
    let source = model.initializer(Seed::new(3));
    let made = model.materialize(&flex(), &source).unwrap();
    let saved = made.col.weight.transform_for_save().val();
    assert_eq!(saved.dims(), [2, 3], "saved transposed");
    let reloaded = make(&flex()).load_record(made.clone().into_record());
    assert_eq!(
        reloaded.col.weight.val().into_data(),
        made.col.weight.val().into_data()
    );
}

/// The saved form has other elements in another shape, and a mapper on one side only.
#[test]
fn mappers_of_your_own() {
    let kind = kind(
        |device| Three {
            first: Param::uninitialized(
                ParamId::new(),
                |device, trainable| {
                    Tensor::random([2, 2], NORMAL, device).set_require_grad(trainable)
                },
                device.clone(),
                true,
                [2, 2].into(),
            )
            .save_mapper(|value: Tensor<2>| value.mul_scalar(4.0))
            .load_mapper(|value| value.div_scalar(4.0)),
            second: lazy([2, 2], device).save_mapper(|value| value.transpose()),
            third: Param::from_tensor(Tensor::random([2, 2], NORMAL, device))
                .load_mapper(|value| value.add_scalar(1.0)),
        },
        &[
            "first: float f32 [2, 2], trainable, lazy",
            "second: float f32 [2, 2], trainable, lazy",
            "third: float f32 [2, 2], trainable, eager",
        ],
        product,
    );
    let make = kind.make;
    let model = kind.check();
    let _held = hold();
    let source = model.initializer(Seed::new(3));
    let made = model.materialize(&flex(), &source).unwrap();
    let loaded = make(&flex()).load_record(made.clone().into_record());
    let data = |param: &Param<Tensor<2>>| -> TensorData { param.val().into_data() };
    assert_eq!(data(&loaded.first), data(&made.first));
    assert_eq!(
        data(&loaded.second),
        made.second.val().transpose().into_data()
    );
    assert_eq!(data(&loaded.third), (made.third.val() + 1.0).into_data());
}
