//! Values of a module outside of its parameters: plain tensors, skipped fields, running states.

use burn::module::{Module, Param, ParamId, RunningState};
use burn::nn::{
    BatchNorm, BatchNormConfig, Linear, LinearConfig, RotaryEncoding, RotaryEncodingConfig,
};
use burn::tensor::{Bool, Device, Distribution, Int, Tensor};
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{MaterializeOptions, check_materialized, independent_copy};
use tinderbox_fake::DynTensor;

use crate::check::{devices, flex, hold, input, kind};
use crate::facts::values;

fn linear(device: &Device) -> Linear {
    LinearConfig::new(2, 2).with_bias(false).init(device)
}

#[derive(Module, Debug)]
struct Plain {
    positions: Tensor<2>,
    noise: Tensor<1>,
    rows: Tensor<1, Int>,
    mask: Tensor<2, Bool>,
    several: Option<Vec<(Tensor<1>, Tensor<1>)>>,
    rotary: RotaryEncoding,
    linear: Linear,
}

#[test]
fn plain_tensors() {
    kind(
        |device| Plain {
            positions: Tensor::<1, Int>::arange(0..4, device)
                .float()
                .reshape([2, 2])
                .sin(),
            noise: Tensor::random([2], Distribution::Default, device),
            rows: Tensor::from_ints([1, 0], device),
            mask: Tensor::from_bool([[true, false], [false, false]], device),
            several: Some(vec![(
                Tensor::ones([1], device) * 3.0,
                Tensor::random([2], Distribution::Normal(0.0, 1.0), device),
            )]),
            rotary: RotaryEncodingConfig::new(4, 2).init(device),
            linear: linear(device),
        },
        &["linear.weight: float f32 [2, 2], trainable, lazy"],
        |plain, device| {
            let x = input([2, 2], device) + plain.positions.clone();
            let x = x * plain.noise.clone().unsqueeze();
            let x = x.select(0, plain.rows.clone());
            let x = plain.linear.forward(x.mask_fill(plain.mask.clone(), 0.5));
            let (three, noise) = plain.several.as_ref().unwrap()[0].clone();
            plain.rotary.forward(x) * three.unsqueeze() + noise.unsqueeze()
        },
    )
    .with_fields(|plain| {
        let (three, noise) = plain.several.as_ref().unwrap()[0].clone();
        vec![
            plain.positions.clone().into(),
            plain.noise.clone().into(),
            plain.rows.clone().into(),
            plain.mask.clone().into(),
            three.into(),
            noise.into(),
            plain.rotary.freq_complex.clone().into(),
        ]
    })
    .check();
}

#[derive(Module, Debug)]
struct Skipped {
    #[module(skip)]
    mask: Option<Tensor<2, Bool>>,
    #[module(skip)]
    noise: Tensor<2>,
    #[module(skip)]
    scale: f64,
    linear: Linear,
}

#[test]
fn skipped_tensors() {
    kind(
        |device| Skipped {
            mask: Some(Tensor::from_bool([[true, false], [false, false]], device)),
            noise: Tensor::random([2, 2], Distribution::Default, device),
            scale: 0.5,
            linear: linear(device),
        },
        &["linear.weight: float f32 [2, 2], trainable, lazy"],
        |skipped, device| {
            let x = input([2, 2], device) * skipped.scale + skipped.noise.clone();
            let mask = skipped.mask.clone().unwrap();
            skipped.linear.forward(x.mask_fill(mask, 0.25))
        },
    )
    .with_fields(|skipped| {
        vec![
            skipped.mask.clone().unwrap().into(),
            skipped.noise.clone().into(),
        ]
    })
    .check();
}

#[derive(Module, Debug)]
struct Hidden {
    #[module(skip)]
    lazy: Linear,
    #[module(skip)]
    eager: Option<Seen>,
    linear: Linear,
}

#[derive(Module, Debug)]
struct Seen {
    param: Param<Tensor<2>>,
}

/// No visitor sees a module in a skipped field. As in plain Burn, a lazy parameter of it is initialized at its
/// first use.
#[test]
fn skipped_modules() {
    kind(
        |device| Hidden {
            lazy: linear(device),
            eager: Some(Seen {
                param: Param::from_tensor(Tensor::random([2, 2], Default::default(), device)),
            }),
            linear: linear(device),
        },
        &["linear.weight: float f32 [2, 2], trainable, lazy"],
        |hidden, device| {
            let x = hidden.lazy.forward(input([2, 2], device));
            hidden
                .linear
                .forward(x.matmul(hidden.eager.as_ref().unwrap().param.val()))
        },
    )
    .with_fields(|hidden| {
        let eager = hidden.eager.as_ref().unwrap();
        vec![eager.param.val().into(), hidden.lazy.weight.val().into()]
    })
    .check();
}

#[derive(Module, Debug)]
struct Computed {
    linear: Linear,
    doubled: Tensor<2>,
}

/// The field has the values that the closure's own parameter had: the values of plain Burn, with the backend's
/// generator.
#[test]
fn tensors_computed_from_a_parameter() {
    let kind = kind(
        |device| {
            let linear = linear(device);
            let doubled = (linear.weight.val() * 2.0).detach();
            Computed { linear, doubled }
        },
        &["linear.weight: float f32 [2, 2], trainable, eager"],
        |computed, device| {
            let x = computed.linear.forward(input([2, 2], device));
            x.matmul(computed.doubled.clone())
        },
    )
    .with_fields(|computed| vec![computed.doubled.clone().into()]);
    let _held = hold();
    let model = kind.listed();
    for device in devices() {
        kind.equals_plain_burn(&model, &device);
    }
    // With the counter-based generator, the parameter is the same at every call.
    let source = model.initializer(Seed::new(2));
    let made = [(); 2].map(|()| values(&model.materialize(&flex(), &source).unwrap()));
    assert_eq!(made[0], made[1]);
}

#[derive(Module, Debug)]
struct Running {
    count: RunningState<Tensor<1>>,
    drawn: RunningState<Tensor<2>>,
    norm: BatchNorm,
    linear: Linear,
}

#[test]
fn running_states() {
    kind(
        |device| Running {
            count: RunningState::new(Tensor::from_floats([3.0], device)),
            drawn: RunningState::new(Tensor::random([2, 2], Distribution::Default, device)),
            norm: BatchNormConfig::new(2).init(device),
            linear: linear(device),
        },
        &[
            "count: float f32 [1], fixed, eager",
            "drawn: float f32 [2, 2], fixed, eager",
            "norm.gamma: float f32 [2], trainable, lazy",
            "norm.beta: float f32 [2], trainable, lazy",
            "norm.running_mean: float f32 [2], fixed, eager",
            "norm.running_var: float f32 [2], fixed, eager",
            "linear.weight: float f32 [2, 2], trainable, lazy",
        ],
        |running, device| {
            let count = running.count.value_sync();
            running.count.update(count.clone() + 1.0);
            let x = input([2, 2], device) * count.unsqueeze() + running.drawn.value();
            running.norm.forward(running.linear.forward(x))
        },
    )
    .check();
}

#[derive(Module, Debug)]
struct Twice {
    first: BatchNorm,
    second: BatchNorm,
}

/// Clones of a running state share one state.
#[test]
fn clones_of_a_running_state() {
    let kind = kind(
        |device| {
            let first: BatchNorm = BatchNormConfig::new(2).init(device);
            Twice {
                second: first.clone(),
                first,
            }
        },
        &[
            "first.gamma: float f32 [2], trainable, lazy",
            "first.beta: float f32 [2], trainable, lazy",
            "first.running_mean: float f32 [2], fixed, eager",
            "first.running_var: float f32 [2], fixed, eager",
            "second.gamma: float f32 [2], trainable, lazy, clone of first.gamma",
            "second.beta: float f32 [2], trainable, lazy, clone of first.beta",
            "second.running_mean: float f32 [2], fixed, eager, clone of first.running_mean",
            "second.running_var: float f32 [2], fixed, eager, clone of first.running_var",
        ],
        |twice, device| {
            twice
                .second
                .forward(twice.first.forward(input([3, 2], device)))
        },
    );
    let _held = hold();
    let model = kind.listed();
    for device in devices() {
        kind.equals_plain_burn(&model, &device);
    }
    // If either is selected, both have its value.
    let source = model.initializer(Seed::new(2));
    for selected in ["first", "second"] {
        let only = MaterializeOptions::on(&flex()).only(|p| p.path.is_under(selected));
        let made = model.materialize(only, &source).unwrap();
        check_materialized(&made).unwrap_err();
        for norm in [made.first, made.second] {
            let mean = DynTensor::from(norm.running_mean.value());
            assert!(!mean.is_fake(), "{selected}");
        }
    }
}

/// A copy has statistics of its own, also in a forward that updates both.
#[test]
fn copies_of_running_states() {
    let kind = kind(
        |device| {
            let first: BatchNorm = BatchNormConfig::new(2).init(device);
            Twice {
                second: independent_copy(&first).no_grad(),
                first,
            }
        },
        &[
            "first.gamma: float f32 [2], trainable, lazy",
            "first.beta: float f32 [2], trainable, lazy",
            "first.running_mean: float f32 [2], fixed, eager",
            "first.running_var: float f32 [2], fixed, eager",
            "second.gamma: float f32 [2], fixed, lazy",
            "second.beta: float f32 [2], fixed, lazy",
            "second.running_mean: float f32 [2], fixed, eager",
            "second.running_var: float f32 [2], fixed, eager",
        ],
        |twice, device| {
            let x = twice.first.forward(input([3, 2], device));
            twice.second.forward(x * 3.0 + 1.0)
        },
    );
    let model = kind.check();
    assert_eq!(model.shared_id(), None);
    let _held = hold();
    let device = flex().autodiff();
    let made = model
        .materialize(&device, &model.initializer(Seed::new(2)))
        .unwrap();
    let x = made.first.forward(input([3, 2], &device));
    made.second.forward(x * 3.0 + 1.0);
    let mean = |norm: &BatchNorm| norm.running_mean.value_sync().into_data();
    assert_ne!(mean(&made.first), mean(&made.second));
}

#[derive(Module, Debug)]
struct Identified {
    state: RunningState<Tensor<1>>,
    param: Param<Tensor<1>>,
}

/// A running state is not a clone of the parameter with the same id.
#[test]
fn ids_that_are_used_twice() {
    kind(
        |device| {
            let id = ParamId::new();
            Identified {
                state: RunningState::with_id(id, Tensor::from_floats([2.0, 4.0], device)),
                param: Param::uninitialized(
                    id,
                    |device, trainable| Tensor::ones([2], device).set_require_grad(trainable),
                    device.clone(),
                    true,
                    [2].into(),
                ),
            }
        },
        &[
            "state: float f32 [2], fixed, eager",
            "param: float f32 [2], trainable, lazy",
        ],
        |module, device| {
            let x = input([2, 2], device) * module.state.value().unsqueeze();
            x * module.param.val().unsqueeze()
        },
    )
    .check();
}
