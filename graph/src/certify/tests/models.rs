//! A model with dropout and a constant, and one with a parameter that two stages read.

use std::sync::Arc;

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use tinderbox_deferred::Deferred;

use crate::cut::Layout;
use crate::trace::{JointGraph, Trace, Traceable};
use crate::{Cut, Outputs, Plan};

const LAYERS: usize = 8;
const WIDTH: usize = 3;

/// A traced model that is cut into stages of equally many layers.
pub(super) struct Model {
    pub(super) name: &'static str,
    pub(super) trace: Trace<Tensor<2>>,
    pub(super) joint: Arc<JointGraph>,
    pub(super) layout: Layout,
}

impl Model {
    pub(super) fn example(samples: usize) -> Tensor<2> {
        Tensor::zeros([samples, WIDTH], &Device::flex())
    }

    fn new(name: &'static str, trace: Trace<Tensor<2>>, stages: usize) -> Self {
        let first = |stage: usize| format!("layers.{}", stage * LAYERS / stages);
        let cuts: Vec<Cut> = (1..stages).map(|stage| Cut::before(first(stage))).collect();
        let plan = Plan::manual(&trace, &cuts).unwrap();
        Self {
            name,
            joint: trace.example_program().unwrap(),
            layout: plan.layout(trace.parameters()).unwrap(),
            trace,
        }
    }
}

#[derive(Module, Debug)]
struct Dropped {
    layers: Vec<Linear>,
    dropout: Dropout,
}

fn layers(device: &Device) -> Vec<Linear> {
    let layer = || LinearConfig::new(WIDTH, WIDTH).init(device);
    (0..LAYERS).map(|_| layer()).collect()
}

pub(super) fn with_dropout(stages: usize) -> Model {
    let model = Deferred::new(|device| Dropped {
        layers: layers(device),
        dropout: DropoutConfig::new(0.5).init(),
    });
    let trace = model
        .unwrap()
        .trace(&Model::example(2), |net: &Dropped, x: Tensor<2>| {
            let scale = Tensor::<2>::from_floats([[1.0, 2.0, 3.0]], &x.device());
            let step = |x, layer: &Linear| net.dropout.forward(relu(layer.forward(x)));
            let y = net.layers.iter().fold(x * scale, step);
            Outputs::loss(y.clone().mean()).with("y", y)
        });
    Model::new("dropout", trace.unwrap(), stages)
}

#[derive(Module, Debug)]
struct Tied {
    embed: Linear,
    layers: Vec<Linear>,
}

pub(super) fn tied(stages: usize) -> Model {
    let model = Deferred::new(|device| Tied {
        embed: LinearConfig::new(WIDTH, WIDTH)
            .with_bias(false)
            .init(device),
        layers: layers(device),
    });
    let trace = model
        .unwrap()
        .trace(&Model::example(2), |net: &Tied, x: Tensor<2>| {
            let step = |x, layer: &Linear| relu(layer.forward(x));
            let y = net.layers.iter().fold(net.embed.forward(x), step);
            let y = y.matmul(net.embed.weight.val().transpose());
            Outputs::loss(y.powi_scalar(2).mean())
        });
    Model::new("tied", trace.unwrap(), stages)
}
