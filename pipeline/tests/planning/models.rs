//! Models to plan.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::{gelu, relu};
use burn::tensor::{Device, Tensor};
use tinderbox_deferred::Deferred;
use tinderbox_models::language_model::{Gpt, GptConfig};
use tinderbox_pipeline::{Outputs, Trace, Traceable};
use tinderbox_pipeline_tests::{floats, tokens};

/// Layers in sequence.
#[derive(Module, Debug)]
pub struct Mlp {
    pub layers: Vec<Linear>,
}

pub fn mlp(layers: usize, width: usize) -> Deferred<Mlp> {
    let init = move |device: &Device| Mlp {
        layers: (0..layers)
            .map(|_| LinearConfig::new(width, width).init(device))
            .collect(),
    };
    Deferred::new(init).unwrap()
}

pub fn forward(net: &Mlp, x: Tensor<2>) -> Outputs {
    let y = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
    Outputs::loss(y.clone().powf_scalar(2.0).mean()).with("y", y)
}

/// Layers with micro-batches of four samples.
pub fn mlp_trace(layers: usize, width: usize, micro_batches: usize) -> Trace<Tensor<2>> {
    let batch = floats([4 * micro_batches, width], 0, &Device::flex());
    let traced = mlp(layers, width).trace(&batch, micro_batches, forward);
    traced.unwrap()
}

/// The language model of the example, with micro-batches of two texts.
pub fn gpt_trace(layers: usize, micro_batches: usize) -> Trace<Tensor<2, burn::tensor::Int>> {
    let config = GptConfig::new(65)
        .with_context(16)
        .with_width(32)
        .with_layers(layers)
        .with_heads(4);
    let model = Deferred::new(move |device| config.init(device)).unwrap();
    let batch = tokens([2 * micro_batches, 16], 65, 0, &Device::flex());
    let forward =
        |gpt: &Gpt, x: Tensor<2, burn::tensor::Int>| Outputs::loss(gpt.loss(x.clone(), x).0);
    model.trace(&batch, micro_batches, forward).unwrap()
}

/// A U-Net: each level of the way up reads the value of the same level of the way down.
#[derive(Module, Debug)]
pub struct UNet {
    down: Vec<Conv2d>,
    up: Vec<Conv2d>,
}

/// Six micro-batches of two images.
pub fn unet_trace() -> Trace<Tensor<4>> {
    let init = |device: &Device| {
        let conv = |from| {
            Conv2dConfig::new([from, 4], [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(device)
        };
        UNet {
            down: vec![conv(4), conv(4), conv(4)],
            up: vec![conv(4), conv(8), conv(8)],
        }
    };
    let forward = |net: &UNet, x: Tensor<4>| {
        let mut skips = Vec::new();
        let mut x = x;
        for conv in &net.down {
            x = relu(conv.forward(x));
            skips.push(x.clone());
        }
        skips.pop();
        x = relu(net.up[0].forward(x));
        for conv in &net.up[1..] {
            let skip = skips.pop().expect("as many skips as levels");
            x = relu(conv.forward(Tensor::cat(vec![x, skip], 1)));
        }
        Outputs::loss(x.powf_scalar(2.0).mean())
    };
    let batch = floats([12, 4, 5, 5], 0, &Device::flex());
    let model = Deferred::new(init).unwrap();
    model.trace(&batch, 6, forward).unwrap()
}
