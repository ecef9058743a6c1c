//! Training state: trainable and frozen parameters, flags, gradient checkpointing.

use burn::module::{Flag, Module, Param, ParamGroup, ParamId};
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear,
    LinearConfig,
};
use burn::tensor::{Bool, Device, Int, Tensor};
use tinderbox_deferred::Deferred;
use tinderbox_deferred::random::Seed;

use crate::check::{SEED, chain, devices, flex, hold, input, kind};
use crate::facts::{Use, values};

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: BatchNorm,
    dropout: Dropout,
    eager: Param<Tensor<2>>,
    last: Linear,
}

fn net(device: &Device) -> Net {
    Net {
        first: LinearConfig::new(2, 2).init(device),
        norm: BatchNormConfig::new(2).init(device),
        dropout: DropoutConfig::new(0.5).init(),
        eager: Param::from_tensor(Tensor::random([2, 2], Default::default(), device)),
        last: LinearConfig::new(2, 2).with_bias(false).init(device),
    }
}

fn forward(net: &Net, device: &Device) -> Tensor<2> {
    let x = net.norm.forward(net.first.forward(input([4, 2], device)));
    let x = net.dropout.forward(x).matmul(net.eager.val());
    net.last.forward(x)
}

#[test]
fn frozen_modules() {
    kind(
        |device| {
            let net = net(device);
            Net {
                first: net.first.no_grad(),
                norm: net.norm.freeze(),
                dropout: net.dropout.freeze(),
                eager: net.eager.no_grad(),
                last: net.last.freeze().unfreeze(),
            }
        },
        &[
            "first.weight: float f32 [2, 2], fixed, lazy",
            "first.bias: float f32 [2], fixed, lazy",
            "norm.gamma: float f32 [2], fixed, lazy",
            "norm.beta: float f32 [2], fixed, lazy",
            "norm.running_mean: float f32 [2], fixed, eager",
            "norm.running_var: float f32 [2], fixed, eager",
            "eager: float f32 [2, 2], fixed, eager",
            "last.weight: float f32 [2, 2], trainable, lazy",
        ],
        forward,
    )
    .check();
}

#[test]
fn nothing_trains() {
    kind(
        |device| net(device).freeze(),
        &[
            "first.weight: float f32 [2, 2], fixed, lazy",
            "first.bias: float f32 [2], fixed, lazy",
            "norm.gamma: float f32 [2], fixed, lazy",
            "norm.beta: float f32 [2], fixed, lazy",
            "norm.running_mean: float f32 [2], fixed, eager",
            "norm.running_var: float f32 [2], fixed, eager",
            "eager: float f32 [2, 2], fixed, eager",
            "last.weight: float f32 [2, 2], fixed, lazy",
        ],
        forward,
    )
    .check();
}

#[test]
fn frozen_groups() {
    kind(
        |device| {
            let norms = ParamGroup::from_predicate("norm");
            let biases = ParamGroup::from_regex("bias$").unwrap();
            net(device)
                .set_require_grad_group(ParamGroup::from_path("eager"), false)
                .freeze_group(biases.clone())
                .freeze_group(ParamGroup::all().exclude(norms))
                .unfreeze_group(ParamGroup::from_paths(vec!["first.bias", "last.weight"]))
        },
        &[
            "first.weight: float f32 [2, 2], fixed, lazy",
            "first.bias: float f32 [2], trainable, lazy",
            "norm.gamma: float f32 [2], trainable, lazy",
            "norm.beta: float f32 [2], trainable, lazy",
            "norm.running_mean: float f32 [2], fixed, eager",
            "norm.running_var: float f32 [2], fixed, eager",
            "eager: float f32 [2, 2], fixed, eager",
            "last.weight: float f32 [2, 2], trainable, lazy",
        ],
        forward,
    )
    .check();
}

/// Groups by path and by id, on the materialized module.
#[test]
fn groups_after_materialization() {
    let _held = hold();
    let model = Deferred::new(net).unwrap();
    let source = model.initializer(Seed::new(SEED));
    let source = source.with_rng(tinderbox_deferred::Rng::Backend);
    let with = Use {
        fields: |_: &Net| Vec::new(),
        forward,
    };
    let frozen = |net: Net| {
        let ids = ParamGroup::ids_from_module((net.norm.clone(), net.last.clone()));
        net.freeze_group(ids)
            .set_require_grad_group(ParamGroup::from_path("first.bias"), false)
    };
    for device in devices() {
        let fresh = || net(&device);
        let made = frozen(model.materialize(&device, &source).unwrap());
        let made = with.facts(&made, &device, &fresh);
        device.seed(SEED);
        let eager = net(&device);
        values(&eager);
        assert_eq!(made, with.facts(&frozen(eager), &device, &fresh));
    }
}

#[derive(Module, Debug)]
struct Flags {
    on: Param<Flag>,
    off: Param<Flag>,
    turned: Param<Flag>,
    dropouts: Vec<Dropout>,
    linear: Linear,
}

#[test]
fn flags() {
    kind(
        |device| {
            let dropout = || DropoutConfig::new(0.5).init();
            Flags {
                on: Param::from_bool(true),
                off: Param::from_bool(false),
                turned: Param::from_bool(true).with_value(false),
                dropouts: vec![dropout(), dropout().freeze()],
                linear: LinearConfig::new(3, 3).init(device),
            }
        },
        &[
            "linear.weight: float f32 [3, 3], trainable, lazy",
            "linear.bias: float f32 [3], trainable, lazy",
        ],
        |flags, device| {
            let x = flags.linear.forward(input([3, 3], device));
            let x = flags
                .dropouts
                .iter()
                .fold(x, |x, dropout| dropout.forward(x));
            let on = [&flags.on, &flags.off, &flags.turned].map(|flag| flag.is_enabled());
            x * on.into_iter().map(f64::from).sum::<f64>()
        },
    )
    .check();
}

#[derive(Module, Debug)]
struct OfEachKind {
    lazy: Linear,
    float: Param<Tensor<2>>,
    int: Param<Tensor<1, Int>>,
    bool: Param<Tensor<2, Bool>>,
}

/// Burn rejects operations on tensors of different strategies.
#[test]
fn gradient_checkpointing() {
    let make = |device: &Device| OfEachKind {
        lazy: LinearConfig::new(2, 2).init(device),
        float: Param::from_tensor(Tensor::ones([2, 2], device)),
        int: Param::initialized(ParamId::new(), Tensor::from_ints([1, 0], device)),
        bool: Param::initialized(
            ParamId::new(),
            Tensor::from_bool([[true, false], [false, true]], device),
        ),
    };
    let _held = hold();
    let model = Deferred::new(make).unwrap();
    let device = flex().autodiff().gradient_checkpointing();
    let made = model
        .materialize(&device, &model.initializer(Seed::new(1)))
        .unwrap();
    let strategy = device.gradient_checkpointing_strategy();
    assert_ne!(
        strategy,
        flex().autodiff().gradient_checkpointing_strategy()
    );
    for (path, context, _) in values(&made) {
        assert_eq!(context, format!("{strategy:?}"), "{path}");
    }
    let x = made
        .lazy
        .forward(input([2, 2], &device))
        .matmul(made.float.val());
    let x = x.select(0, made.int.val()).mask_fill(made.bool.val(), 0.0);
    let gradients = x.sum().backward();
    assert!(made.lazy.weight.grad(&gradients).is_some());
    assert!(made.float.grad(&gradients).is_some());
}

#[derive(Module, Debug)]
struct Mixed {
    backbone: Linear,
    eager: Param<Tensor<1>>,
    head: LayerNorm,
}

/// A part that the closure creates without gradients stays without.
#[test]
fn parts_without_autodiff() {
    let make = |device: &Device| {
        let plain = device.clone().without_autodiff();
        Mixed {
            backbone: LinearConfig::new(2, 2).init(&plain),
            eager: Param::from_tensor(Tensor::ones([2], &plain)),
            head: LayerNormConfig::new(2).init(device),
        }
    };
    let _held = hold();
    let model = Deferred::new(make).unwrap();
    let source = model.initializer(Seed::new(SEED));
    let source = source.with_rng(tinderbox_deferred::Rng::Backend);
    for device in devices() {
        let made = model.materialize(&device, &source).unwrap();
        device.seed(SEED);
        let eager = make(&device);
        assert_eq!(values(&made), values(&eager));
        let state = |mixed: &Mixed| {
            let floats = [
                &mixed.eager,
                mixed.backbone.bias.as_ref().unwrap(),
                &mixed.head.gamma,
            ];
            floats.map(|param| param.is_require_grad())
        };
        assert_eq!(state(&made), state(&eager));
        assert_eq!(state(&made.train()), state(&eager.train()));
    }
}

/// A recording can't leave its autodiff context.
#[test]
fn validation_inside_the_closure() {
    let _held = hold();
    let error = Deferred::new(|device| net(device).valid()).unwrap_err();
    let text = chain(&error);
    let constructed = "the model could not be constructed on a recording device: the recorded code \
                       moved a fake tensor between devices or autodiff contexts in `";
    assert!(text.starts_with(constructed), "{text}");
    assert!(
        text.ends_with(
            "); `to_device`, `inner` and `from_inner` of float tensors can't be recorded: leave them out, and \
             create tensors on the device of their input"
        ),
        "{text}"
    );
    // After materialization Burn's own methods work.
    let model = Deferred::new(net).unwrap();
    let made = model
        .materialize(&flex().autodiff(), &model.initializer(Seed::new(1)))
        .unwrap();
    assert!(!made.valid().last.weight.is_require_grad());
}
