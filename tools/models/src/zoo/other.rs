//! Models with fields and layers of unusual kinds.

use burn::module::{Lora, Module};
use burn::nn::{
    Dropout, DropoutConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig, Relu, Tanh,
};
use burn::tensor::{Device, Int, Tensor};
use tinderbox::Outputs;

use super::entry::{Entry, SAMPLES};
use crate::experts::{Experts, ExpertsConfig};
use crate::values::floats;

const WIDTH: usize = 8;

type Pair = (Tensor<2>, Tensor<2>);

fn pair(number: u64, device: &Device) -> Pair {
    let shape = [SAMPLES, WIDTH];
    (
        floats(shape, number, device),
        floats(shape, number + 1000, device),
    )
}

fn squared(found: Tensor<2>, expected: Tensor<2>) -> Outputs {
    let loss = (found.clone() - expected).powf_scalar(2.0).mean();
    Outputs::loss(loss).with("found", found)
}

fn linear(device: &Device) -> Linear {
    LinearConfig::new(WIDTH, WIDTH).init(device)
}

/// Layers of experts that all process every sample.
pub const EXPERTS: Entry<Experts, Pair> = Entry {
    init: |device| ExpertsConfig::new([WIDTH, WIDTH], 12, 2, 4).init(device),
    forward: |model, (x, y)| squared(model.forward(x), y),
    batch: pair,
    count: None,
};

/// A layer of one of several kinds.
#[derive(Module, Debug)]
pub enum Layer {
    Linear(Linear),
    Norm(LayerNorm),
    Gelu(Gelu),
    Tanh(Tanh),
    Relu(Relu),
    Residual(Vec<Linear>),
    Dropout(Dropout),
}

impl Layer {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Linear(layer) => layer.forward(x),
            Self::Norm(layer) => layer.forward(x),
            Self::Gelu(layer) => layer.forward(x),
            Self::Tanh(layer) => layer.forward(x),
            Self::Relu(layer) => layer.forward(x),
            Self::Residual(layers) => {
                x.clone() + layers.iter().fold(x, |x, layer| layer.forward(x))
            }
            Self::Dropout(layer) => layer.forward(x),
        }
    }
}

/// Layers whose kinds are chosen at construction.
#[derive(Module, Debug)]
pub struct Variants {
    layers: Vec<Layer>,
}

pub const VARIANTS: Entry<Variants, Pair> = Entry {
    init: |device| Variants {
        layers: vec![
            Layer::Linear(linear(device)),
            Layer::Gelu(Gelu::new()),
            Layer::Residual(vec![linear(device), linear(device)]),
            Layer::Norm(LayerNormConfig::new(WIDTH).init(device)),
            Layer::Tanh(Tanh::new()),
            Layer::Dropout(DropoutConfig::new(0.0).init()),
            Layer::Linear(linear(device)),
            Layer::Relu(Relu::new()),
            Layer::Linear(linear(device)),
        ],
    },
    forward: |model, (x, y)| {
        let layers = model.layers.iter();
        squared(layers.fold(x, |x, layer| layer.forward(x)), y)
    },
    batch: pair,
    count: None,
};

/// Layers one after the other.
#[derive(Module, Debug)]
pub struct Layers {
    layers: Vec<Linear>,
    activation: Gelu,
}

/// Burn's own adapters on frozen weights.
pub const LORA: Entry<Layers, Pair> = Entry {
    init: |device| {
        let layers = Layers {
            layers: (0..5).map(|_| linear(device)).collect(),
            activation: Gelu::new(),
        };
        layers.apply_lora(Lora::new(2, 4.0))
    },
    forward: |model, (x, y)| {
        let layers = model.layers.iter();
        let step = |x, layer: &Linear| model.activation.forward(layer.forward(x));
        squared(layers.fold(x, step), y)
    },
    batch: pair,
    count: None,
};

/// Fields that are constants: tensors, numbers, texts and flags.
#[derive(Module, Debug)]
pub struct Constants {
    layers: Vec<Linear>,
    scales: Vec<Tensor<2>>,
    offset: Tensor<1>,
    slope: f64,
    repeats: usize,
    #[module(skip)]
    name: String,
    is_residual: bool,
    limits: Option<(f32, f32)>,
}

pub const CONSTANTS: Entry<Constants, Pair> = Entry {
    init: |device| {
        let scale = |number: u64| floats([1, WIDTH], number, device) + 1.5;
        Constants {
            layers: (0..3).map(|_| linear(device)).collect(),
            scales: (0..3).map(scale).collect(),
            offset: Tensor::<1, Int>::arange(0..WIDTH as i64, device).float(),
            slope: 0.3,
            repeats: 2,
            name: "constants".into(),
            is_residual: true,
            limits: Some((-3.0, 3.0)),
        }
    },
    forward: |model, (x, y)| {
        assert_eq!(model.name, "constants");
        let mut x = x;
        for (layer, scale) in model.layers.iter().zip(&model.scales) {
            for _ in 0..model.repeats {
                let found = layer.forward(x.clone()) * scale.clone();
                let found = found + model.offset.clone().unsqueeze::<2>() * model.slope;
                x = match model.is_residual {
                    true => x + found,
                    false => found,
                };
            }
            if let Some((least, most)) = model.limits {
                x = x.clamp(least, most);
            }
        }
        squared(x, y)
    },
    batch: pair,
    count: None,
};
