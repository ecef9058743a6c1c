//! Models whose forward is not linear, from the example that compares partitioners, in small sizes.

use burn::tensor::{Device, Int, Tensor};
use tinderbox::Outputs;
use tinderbox_models::{encoder_decoder, experts, resnet, unet};

use crate::models::{Case, SAMPLES, floats, tokens};

const LENGTH: usize = 5;
const VOCABULARY: usize = 11;

/// An encoder and a decoder with cross attention, which share one embedding with the head.
#[derive(Clone)]
pub struct EncoderDecoder;

impl Case for EncoderDecoder {
    type Model = encoder_decoder::EncoderDecoder;
    type Batch = ((Tensor<2, Int>, Tensor<2, Int>), Tensor<2, Int>);

    fn init(&self, device: &Device) -> Self::Model {
        encoder_decoder::EncoderDecoderConfig::new(VOCABULARY, 12, 3).init(device)
    }

    fn forward(&self, model: &Self::Model, batch: Self::Batch) -> Outputs {
        let ((source, target), expected) = batch;
        let logits = model.forward(source, target);
        Outputs::loss(model.loss(logits.clone(), expected)).with("logits", logits)
    }

    fn batch(&self, number: u64, device: &Device) -> Self::Batch {
        let words = |number| tokens([SAMPLES, LENGTH], VOCABULARY, number, device);
        ((words(number), words(number + 500)), words(number + 1000))
    }
}

/// Parallel experts that process every sample, weighted by a router.
#[derive(Clone)]
pub struct Experts;

impl Case for Experts {
    type Model = experts::Experts;
    type Batch = (Tensor<2>, Tensor<2>);

    fn init(&self, device: &Device) -> Self::Model {
        experts::ExpertsConfig::new([8, 4], 12, 2, 4).init(device)
    }

    fn forward(&self, model: &Self::Model, (x, y): Self::Batch) -> Outputs {
        let x = model.forward(x);
        Outputs::loss((x.clone() - y).powf_scalar(2.0).mean()).with("prediction", x)
    }

    fn batch(&self, number: u64, device: &Device) -> Self::Batch {
        (
            floats([SAMPLES, 8], number, device),
            floats([SAMPLES, 4], number + 1000, device),
        )
    }
}

/// Residual convolutions with group norms.
#[derive(Clone)]
pub struct ResNet;

impl Case for ResNet {
    type Model = resnet::ResNet;
    type Batch = (Tensor<4>, Tensor<2>);

    fn init(&self, device: &Device) -> Self::Model {
        resnet::ResNetConfig::new(4, 2, 2, 5).init(device)
    }

    fn forward(&self, model: &Self::Model, (pictures, scores): Self::Batch) -> Outputs {
        let found = model.forward(pictures);
        Outputs::loss((found - scores).powf_scalar(2.0).mean())
    }

    fn batch(&self, number: u64, device: &Device) -> Self::Batch {
        (
            floats([SAMPLES, 3, 6, 6], number, device),
            floats([SAMPLES, 5], number + 1000, device),
        )
    }
}

/// A U-Net with skip connections.
#[derive(Clone)]
pub struct SkipNet;

impl Case for SkipNet {
    type Model = unet::UNet;
    type Batch = (Tensor<4>, Tensor<4>);

    fn init(&self, device: &Device) -> Self::Model {
        unet::UNetConfig::new(4, 2).init(device)
    }

    fn forward(&self, model: &Self::Model, (x, y): Self::Batch) -> Outputs {
        Outputs::loss((model.forward(x) - y).powf_scalar(2.0).mean())
    }

    fn batch(&self, number: u64, device: &Device) -> Self::Batch {
        (
            floats([SAMPLES, 3, 8, 8], number, device),
            floats([SAMPLES, 3, 8, 8], number + 1000, device),
        )
    }
}
