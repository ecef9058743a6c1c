//! The model of Burn's example for MNIST, for images of 8 x 8 pixels, and its steps for burn-train.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Gelu, Linear, LinearConfig,
    PaddingConfig2d, Relu,
};
use burn::tensor::{Device, Tensor};
use burn_train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};

use super::data::DigitBatch;

const CLASSES: usize = 10;

/// Two blocks of convolutions and two linear layers.
#[derive(Module, Debug)]
pub struct Model {
    conv1: ConvBlock,
    conv2: ConvBlock,
    dropout: Dropout,
    fc1: Linear,
    fc2: Linear,
    activation: Gelu,
}

#[derive(Module, Debug)]
struct ConvBlock {
    conv: Conv2d,
    norm: BatchNorm,
    activation: Relu,
}

impl ConvBlock {
    fn new(channels: [usize; 2], device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new(channels, [3, 3])
                .with_padding(PaddingConfig2d::Valid)
                .init(device),
            norm: BatchNormConfig::new(channels[1]).init(device),
            activation: Relu::new(),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<4> {
        let x = self.norm.forward(self.conv.forward(images));
        self.activation.forward(x)
    }
}

impl Model {
    /// Initializes the model.
    pub fn new(device: &Device) -> Self {
        Self {
            conv1: ConvBlock::new([1, 32], device),
            conv2: ConvBlock::new([32, 64], device),
            dropout: DropoutConfig::new(0.25).init(),
            fc1: LinearConfig::new(64 * 4 * 4, 128).init(device),
            fc2: LinearConfig::new(128, CLASSES).init(device),
            activation: Gelu::new(),
        }
    }

    fn forward(&self, images: Tensor<3>) -> Tensor<2> {
        let [batch, height, width] = images.dims();
        let x = images.reshape([batch, 1, height, width]).detach();
        let x = self.conv2.forward(self.conv1.forward(x));
        let x = self.fc1.forward(x.flatten(1, 3));
        self.fc2
            .forward(self.dropout.forward(self.activation.forward(x)))
    }

    /// Returns the scores of images with the mean cross entropy of their digits.
    pub fn forward_classification(&self, batch: DigitBatch) -> ClassificationOutput {
        let output = self.forward(batch.images);
        let loss = CrossEntropyLossConfig::new()
            .init(&output.device())
            .forward(output.clone(), batch.targets.clone());
        ClassificationOutput::new(loss, output, batch.targets)
    }
}

impl TrainStep for Model {
    type Input = DigitBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: DigitBatch) -> TrainOutput<ClassificationOutput> {
        let item = self.forward_classification(batch);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Model {
    type Input = DigitBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: DigitBatch) -> ClassificationOutput {
        self.forward_classification(batch)
    }
}
