//! Containers of modules: generics, enums, `Option`, `Vec`, tuples, arrays, and nested combinations.

use std::marker::PhantomData;

use burn::module::{Module, Param, ParamId};
use burn::nn::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, Relu};
use burn::tensor::{Device, Tensor};

use crate::check::{input, kind};

fn linear(from: usize, to: usize, device: &Device) -> Linear {
    LinearConfig::new(from, to).init(device)
}

/// A linear layer without bias.
fn bare(from: usize, to: usize, device: &Device) -> Linear {
    LinearConfig::new(from, to).with_bias(false).init(device)
}

fn norm(width: usize, device: &Device) -> LayerNorm {
    LayerNormConfig::new(width).init(device)
}

#[derive(Module, Debug)]
struct Tagged<M, T> {
    inner: M,
    #[module(skip)]
    tag: PhantomData<T>,
}

#[derive(Module, Debug)]
struct Tower<const N: usize> {
    levels: [Linear; N],
}

#[test]
fn generics() {
    kind(
        |device| Tagged {
            inner: Tagged {
                inner: Tower {
                    levels: [(); 2].map(|()| linear(3, 3, device)),
                },
                tag: PhantomData::<String>,
            },
            tag: PhantomData::<u8>,
        },
        &[
            "inner.inner.levels.0.weight: float f32 [3, 3], trainable, lazy",
            "inner.inner.levels.0.bias: float f32 [3], trainable, lazy",
            "inner.inner.levels.1.weight: float f32 [3, 3], trainable, lazy",
            "inner.inner.levels.1.bias: float f32 [3], trainable, lazy",
        ],
        |module, device| {
            let levels = module.inner.inner.levels.iter();
            levels.fold(input([2, 3], device), |x, level| level.forward(x))
        },
    )
    .check();
}

#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)]
enum Head<M: Module> {
    Plain(Linear),
    Normed(LayerNorm),
    Other(M),
}

impl<M: Module> Head<M> {
    fn forward(&self, x: Tensor<2>, other: impl Fn(&M, Tensor<2>) -> Tensor<2>) -> Tensor<2> {
        match self {
            Self::Plain(linear) => linear.forward(x),
            Self::Normed(norm) => norm.forward(x),
            Self::Other(module) => other(module, x),
        }
    }
}

#[derive(Module, Debug)]
struct Heads {
    first: Head<Linear>,
    second: Head<Linear>,
    third: Head<Head<Linear>>,
}

#[test]
fn enums() {
    kind(
        |device| Heads {
            first: Head::Plain(bare(2, 3, device)),
            second: Head::Normed(norm(3, device)),
            third: Head::Other(Head::Plain(bare(3, 2, device))),
        },
        &[
            "first.Plain.weight: float f32 [2, 3], trainable, lazy",
            "second.Normed.gamma: float f32 [3], trainable, lazy",
            "second.Normed.beta: float f32 [3], trainable, lazy",
            "third.Other.Plain.weight: float f32 [3, 2], trainable, lazy",
        ],
        |heads, device| {
            let plain = |linear: &Linear, x| linear.forward(x);
            let x = heads.first.forward(input([2, 2], device), plain);
            let x = heads.second.forward(x, plain);
            heads.third.forward(x, |head, x| head.forward(x, plain))
        },
    )
    .check();
}

#[derive(Module, Debug)]
struct Options {
    some: Option<Linear>,
    none: Option<Linear>,
    param: Option<Param<Tensor<2>>>,
    no_param: Option<Param<Tensor<2>>>,
}

#[test]
fn options() {
    kind(
        |device| Options {
            some: Some(linear(2, 2, device)),
            none: None,
            param: Some(bare(2, 2, device).weight),
            no_param: None,
        },
        &[
            "some.weight: float f32 [2, 2], trainable, lazy",
            "some.bias: float f32 [2], trainable, lazy",
            "param: float f32 [2, 2], trainable, lazy",
        ],
        |options, device| {
            assert!(options.none.is_none() && options.no_param.is_none());
            let x = options
                .some
                .as_ref()
                .unwrap()
                .forward(input([2, 2], device));
            x.matmul(options.param.as_ref().unwrap().val())
        },
    )
    .check();
}

#[derive(Module, Debug)]
struct Vectors {
    layers: Vec<Linear>,
    params: Vec<Param<Tensor<2>>>,
    of_vectors: Vec<Vec<Linear>>,
    empty: Vec<Linear>,
}

#[test]
fn vectors() {
    kind(
        |device| Vectors {
            layers: (1..=2).map(|n| bare(n, n + 1, device)).collect(),
            params: vec![bare(3, 2, device).weight],
            of_vectors: vec![vec![], vec![bare(2, 1, device), bare(1, 2, device)]],
            empty: Vec::new(),
        },
        &[
            "layers.0.weight: float f32 [1, 2], trainable, lazy",
            "layers.1.weight: float f32 [2, 3], trainable, lazy",
            "params.0: float f32 [3, 2], trainable, lazy",
            "of_vectors.1.0.weight: float f32 [2, 1], trainable, lazy",
            "of_vectors.1.1.weight: float f32 [1, 2], trainable, lazy",
        ],
        |vectors, device| {
            assert!(vectors.empty.is_empty() && vectors.of_vectors[0].is_empty());
            let through = |x, layers: &Vec<Linear>| {
                layers.iter().fold(x, |x, layer: &Linear| layer.forward(x))
            };
            let x = through(input([2, 1], device), &vectors.layers);
            let x = x.matmul(vectors.params[0].val());
            vectors.of_vectors.iter().fold(x, through)
        },
    )
    .check();
}

#[derive(Module, Debug)]
struct Tuples {
    pair: (Linear, LayerNorm),
    nested: (Linear, (Param<Tensor<2>>, Option<Linear>), Linear),
}

#[test]
fn tuples() {
    kind(
        |device| Tuples {
            pair: (bare(2, 2, device), norm(2, device)),
            nested: (
                bare(2, 3, device),
                (bare(3, 2, device).weight, None),
                bare(2, 2, device),
            ),
        },
        &[
            "pair.0.weight: float f32 [2, 2], trainable, lazy",
            "pair.1.gamma: float f32 [2], trainable, lazy",
            "pair.1.beta: float f32 [2], trainable, lazy",
            "nested.0.weight: float f32 [2, 3], trainable, lazy",
            "nested.1.0: float f32 [3, 2], trainable, lazy",
            "nested.2.weight: float f32 [2, 2], trainable, lazy",
        ],
        |tuples, device| {
            let x = tuples.pair.0.forward(input([2, 2], device));
            let x = tuples.nested.0.forward(tuples.pair.1.forward(x));
            let x = x.matmul(tuples.nested.1.0.val());
            tuples.nested.2.forward(x)
        },
    )
    .check();
}

#[derive(Module, Debug)]
struct Arrays {
    layers: [Linear; 2],
    of_arrays: [[Option<Linear>; 1]; 2],
}

#[test]
fn arrays() {
    kind(
        |device| Arrays {
            layers: [bare(1, 2, device), bare(2, 3, device)],
            of_arrays: [[None], [Some(bare(3, 1, device))]],
        },
        &[
            "layers.0.weight: float f32 [1, 2], trainable, lazy",
            "layers.1.weight: float f32 [2, 3], trainable, lazy",
            "of_arrays.1.0.weight: float f32 [3, 1], trainable, lazy",
        ],
        |arrays, device| {
            let layers = arrays
                .layers
                .iter()
                .chain(arrays.of_arrays.iter().flatten().flatten());
            layers.fold(input([2, 1], device), |x, layer| layer.forward(x))
        },
    )
    .check();
}

/// Nested combinations.
type Everything = Option<Vec<(Head<Linear>, [Option<Tagged<Linear, u8>>; 2])>>;

#[derive(Module, Debug)]
struct Nested {
    all: Everything,
}

#[test]
fn nested_modules() {
    kind(
        |device| {
            let tagged = Tagged {
                inner: bare(2, 2, device),
                tag: PhantomData,
            };
            let row = (Head::Plain(bare(2, 2, device)), [None, Some(tagged)]);
            let empty = (Head::Normed(norm(2, device)), [None, None]);
            Nested {
                all: Some(vec![row, empty]),
            }
        },
        &[
            "all.0.0.Plain.weight: float f32 [2, 2], trainable, lazy",
            "all.0.1.1.inner.weight: float f32 [2, 2], trainable, lazy",
            "all.1.0.Normed.gamma: float f32 [2], trainable, lazy",
            "all.1.0.Normed.beta: float f32 [2], trainable, lazy",
        ],
        |nested, device| {
            let mut x = input([2, 2], device);
            for (head, tagged) in nested.all.iter().flatten() {
                x = head.forward(x, |linear, x| linear.forward(x));
                for tagged in tagged.iter().flatten() {
                    x = tagged.inner.forward(x);
                }
            }
            x
        },
    )
    .check();
}

#[derive(Module, Debug)]
struct Settings {
    activation: Relu,
    dropout: Dropout,
    width: usize,
    epsilon: f64,
    name: String,
    nothing: Option<Linear>,
}

#[test]
fn modules_without_parameters() {
    let model = kind(
        |_| Settings {
            activation: Relu::new(),
            dropout: DropoutConfig::new(0.5).init(),
            width: 2,
            epsilon: 0.5,
            name: "settings".into(),
            nothing: None,
        },
        &[],
        |settings, device| {
            assert_eq!(settings.name, "settings");
            let x = input([2, settings.width], device) - settings.epsilon;
            settings.dropout.forward(settings.activation.forward(x))
        },
    )
    .check();
    assert_eq!(model.parameters().bytes(), 0);
}

/// A lazy parameter is a module by itself, with an empty path.
#[test]
fn a_parameter_as_the_whole_module() {
    kind(
        |device| -> Param<Tensor<2>> {
            Param::uninitialized(
                ParamId::new(),
                |device, trainable| {
                    Tensor::random([2, 2], Default::default(), device).set_require_grad(trainable)
                },
                device.clone(),
                true,
                [2, 2].into(),
            )
        },
        &[": float f32 [2, 2], trainable, lazy"],
        |param, device| input([2, 2], device).matmul(param.val()),
    )
    .check();
}
