//! A model with dropout and a constant, and a model with a parameter that two stages read.

use std::sync::Arc;

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use tinderbox_deferred::Deferred;

use crate::cut::Layout;
use crate::plan::layout;
use crate::{Batch, Cut, JointGraph, Outputs, Trace, Traceable};

const LAYERS: usize = 8;
const WIDTH: usize = 3;

/// A traced model that is cut into stages.
pub(super) struct Model {
    pub(super) name: &'static str,
    pub(super) joint: Arc<JointGraph>,
    pub(super) layout: Layout,
}

impl Model {
    pub(super) fn new<B: Batch>(name: &'static str, trace: &Trace<B>, cuts: &[Cut]) -> Self {
        let plan = trace.plan_at(cuts).unwrap();
        Self {
            name,
            joint: trace.example_program().unwrap(),
            layout: layout(&plan, trace.parameters()).unwrap(),
        }
    }

    /// Cuts a model into stages with equal numbers of layers.
    fn in_stages(name: &'static str, trace: &Trace<Tensor<2>>, stages: usize) -> Self {
        let first = |stage: usize| format!("layers.{}", stage * LAYERS / stages);
        let cuts: Vec<Cut> = (1..stages).map(|stage| Cut::before(first(stage))).collect();
        Self::new(name, trace, &cuts)
    }
}

pub(super) fn example(samples: usize) -> Tensor<2> {
    Tensor::zeros([samples, WIDTH], &Device::flex())
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
    Model::in_stages("dropout", &trace_with_dropout(), stages)
}

pub(super) fn trace_with_dropout() -> Trace<Tensor<2>> {
    let model = Deferred::new(|device| Dropped {
        layers: layers(device),
        dropout: DropoutConfig::new(0.5).init(),
    });
    let forward = |net: &Dropped, x: Tensor<2>| {
        let scale = Tensor::<2>::from_floats([[1.0, 2.0, 3.0]], &x.device());
        let step = |x, layer: &Linear| net.dropout.forward(relu(layer.forward(x)));
        let y = net.layers.iter().fold(x * scale, step);
        Outputs::loss(y.clone().mean()).with("y", y)
    };
    model.unwrap().trace(&example(2), 1, forward).unwrap()
}

#[derive(Module, Debug)]
struct Tied {
    embed: Linear,
    layers: Vec<Linear>,
}

pub(super) fn tied(stages: usize) -> Model {
    let embed = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
    let model = Deferred::new(move |device| Tied {
        embed: embed.init(device),
        layers: layers(device),
    });
    let forward = |net: &Tied, x: Tensor<2>| {
        let step = |x, layer: &Linear| relu(layer.forward(x));
        let y = net.layers.iter().fold(net.embed.forward(x), step);
        let y = y.matmul(net.embed.weight.val().transpose());
        Outputs::loss(y.powi_scalar(2).mean())
    };
    let trace = model.unwrap().trace(&example(2), 1, forward);
    Model::in_stages("tied", &trace.unwrap(), stages)
}
