//! Convolutional networks with batch norm.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig};
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Gelu, Linear, LinearConfig,
    PaddingConfig2d, Relu,
};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};
use tinderbox::Outputs;

use super::entry::{Entry, SAMPLES, cross_entropy};
use crate::values::{floats, tokens};

const CLASSES: usize = 10;

type Labeled<const D: usize> = (Tensor<D>, Tensor<1, Int>);

fn labeled<const D: usize>(shape: [usize; D], number: u64, device: &Device) -> Labeled<D> {
    (
        floats(shape, number, device),
        tokens([shape[0]], CLASSES, number + 1000, device),
    )
}

fn classified(logits: Tensor<2>, classes: Tensor<1, Int>) -> Outputs {
    Outputs::loss(cross_entropy(logits.clone(), classes)).with("logits", logits)
}

/// The model of Burn's example `mnist`, on images of 14 x 14 pixels.
#[derive(Module, Debug)]
pub struct Mnist {
    conv1: ConvBlock,
    conv2: ConvBlock,
    dropout: Dropout,
    fc1: Linear,
    fc2: Linear,
    fc3: Linear,
    activation: Gelu,
}

#[derive(Module, Debug)]
struct ConvBlock {
    conv: Conv2d,
    norm: BatchNorm,
    pool: Option<MaxPool2d>,
    activation: Relu,
}

impl ConvBlock {
    fn new(channels: [usize; 2], pools: bool, device: &Device) -> Self {
        let pool = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
        Self {
            conv: Conv2dConfig::new(channels, [3, 3])
                .with_padding(PaddingConfig2d::Valid)
                .init(device),
            norm: BatchNormConfig::new(channels[1]).init(device),
            pool: pools.then_some(pool),
            activation: Relu::new(),
        }
    }

    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let x = self.conv.forward(input);
        let x = self.activation.forward(self.norm.forward(x));
        match &self.pool {
            Some(pool) => pool.forward(x),
            None => x,
        }
    }
}

impl Mnist {
    fn new(device: &Device) -> Self {
        Self {
            conv1: ConvBlock::new([1, 4], true, device),
            conv2: ConvBlock::new([4, 6], true, device),
            dropout: DropoutConfig::new(0.0).init(),
            fc1: LinearConfig::new(6 * 2 * 2, 12).init(device),
            fc2: LinearConfig::new(12, 12).init(device),
            fc3: LinearConfig::new(12, CLASSES).init(device),
            activation: Gelu::new(),
        }
    }

    fn forward(&self, images: Tensor<3>) -> Tensor<2> {
        let [batch, height, width] = images.dims();
        let x = images.reshape([batch, 1, height, width]).detach();
        let x = self.conv2.forward(self.conv1.forward(x));
        let [batch, channels, height, width] = x.dims();
        let x = x.reshape([batch, channels * height * width]);
        let x = self
            .dropout
            .forward(self.activation.forward(self.fc1.forward(x)));
        let x = self
            .dropout
            .forward(self.activation.forward(self.fc2.forward(x)));
        self.fc3.forward(x)
    }
}

pub const MNIST: Entry<Mnist, Labeled<3>> = Entry {
    init: Mnist::new,
    forward: |model, (images, classes)| classified(model.forward(images), classes),
    batch: |number, device| labeled([SAMPLES, 14, 14], number, device),
    count: None,
};

/// A ResNet-18.
#[derive(Module, Debug)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm,
    relu: Relu,
    maxpool: MaxPool2d,
    layer1: Vec<ResidualBlock>,
    layer2: Vec<ResidualBlock>,
    layer3: Vec<ResidualBlock>,
    layer4: Vec<ResidualBlock>,
    avgpool: AdaptiveAvgPool2d,
    fc: Linear,
}

#[derive(Module, Debug)]
struct ResidualBlock {
    conv1: Conv2d,
    bn1: BatchNorm,
    conv2: Conv2d,
    bn2: BatchNorm,
    downsample: Option<Downsample>,
}

#[derive(Module, Debug)]
struct Downsample {
    conv: Conv2d,
    bn: BatchNorm,
}

fn conv(channels: [usize; 2], size: usize, stride: usize, device: &Device) -> Conv2d {
    let padding = size / 2;
    Conv2dConfig::new(channels, [size, size])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(
            padding, padding, padding, padding,
        ))
        .with_bias(false)
        .init(device)
}

fn norm(channels: usize, device: &Device) -> BatchNorm {
    BatchNormConfig::new(channels).init(device)
}

impl ResidualBlock {
    fn new([from, to]: [usize; 2], stride: usize, device: &Device) -> Self {
        Self {
            conv1: conv([from, to], 3, stride, device),
            bn1: norm(to, device),
            conv2: conv([to, to], 3, 1, device),
            bn2: norm(to, device),
            downsample: (from != to).then(|| Downsample {
                conv: conv([from, to], 1, stride, device),
                bn: norm(to, device),
            }),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let identity = match &self.downsample {
            Some(downsample) => downsample.bn.forward(downsample.conv.forward(x.clone())),
            None => x.clone(),
        };
        let x = relu(self.bn1.forward(self.conv1.forward(x)));
        relu(self.bn2.forward(self.conv2.forward(x)) + identity)
    }
}

impl ResNet {
    /// Initializes the model with the channels of its four groups.
    pub fn new([first, second, third, fourth]: [usize; 4], device: &Device) -> Self {
        let layer = |channels: [usize; 2], stride| {
            vec![
                ResidualBlock::new(channels, stride, device),
                ResidualBlock::new([channels[1]; 2], 1, device),
            ]
        };
        Self {
            conv1: conv([3, first], 7, 2, device),
            bn1: norm(first, device),
            relu: Relu::new(),
            maxpool: MaxPool2dConfig::new([3, 3])
                .with_strides([2, 2])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(),
            layer1: layer([first, first], 1),
            layer2: layer([first, second], 2),
            layer3: layer([second, third], 2),
            layer4: layer([third, fourth], 2),
            avgpool: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            fc: LinearConfig::new(fourth, CLASSES).init(device),
        }
    }

    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self
            .relu
            .forward(self.bn1.forward(self.conv1.forward(images)));
        let mut x = self.maxpool.forward(x);
        for layer in [&self.layer1, &self.layer2, &self.layer3, &self.layer4] {
            x = layer.iter().fold(x, |x, block| block.forward(x));
        }
        self.fc.forward(self.avgpool.forward(x).flatten(1, 3))
    }
}

pub const RESNET_18: Entry<ResNet, Labeled<4>> = Entry {
    init: |device| ResNet::new([4, 8, 12, 16], device),
    forward: |model, (images, classes)| classified(model.forward(images), classes),
    batch: |number, device| labeled([SAMPLES, 3, 32, 32], number, device),
    count: None,
};

/// Inverted residuals with depthwise convolutions and `relu6`, as in MobileNetV2.
#[derive(Module, Debug)]
pub struct MobileNet {
    stem: ConvNormActivation,
    blocks: Vec<InvertedResidual>,
    last: ConvNormActivation,
    classifier: Linear,
}

#[derive(Module, Debug)]
struct ConvNormActivation {
    conv: Conv2d,
    norm: BatchNorm,
}

#[derive(Module, Debug)]
struct InvertedResidual {
    expand: ConvNormActivation,
    depthwise: ConvNormActivation,
    project: Conv2d,
    norm: BatchNorm,
    is_residual: bool,
}

impl ConvNormActivation {
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.norm.forward(self.conv.forward(x)).clamp(0.0, 6.0)
    }
}

impl MobileNet {
    fn new(device: &Device) -> Self {
        let activated = |channels: [usize; 2], size, stride| ConvNormActivation {
            conv: conv(channels, size, stride, device),
            norm: norm(channels[1], device),
        };
        let block = |([from, to], stride): ([usize; 2], usize)| {
            let hidden = 2 * from;
            let depthwise = Conv2dConfig::new([hidden, hidden], [3, 3])
                .with_stride([stride, stride])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .with_groups(hidden)
                .with_bias(false);
            InvertedResidual {
                expand: activated([from, hidden], 1, 1),
                depthwise: ConvNormActivation {
                    conv: depthwise.init(device),
                    norm: norm(hidden, device),
                },
                project: conv([hidden, to], 1, 1, device),
                norm: norm(to, device),
                is_residual: stride == 1 && from == to,
            }
        };
        let blocks = [([4, 4], 1), ([4, 6], 2), ([6, 6], 1), ([6, 8], 2)];
        Self {
            stem: activated([3, 4], 3, 2),
            blocks: blocks.map(block).into(),
            last: activated([8, 12], 1, 1),
            classifier: LinearConfig::new(12, CLASSES).init(device),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let mut x = self.stem.forward(images);
        for block in &self.blocks {
            let found = block.depthwise.forward(block.expand.forward(x.clone()));
            let found = block.norm.forward(block.project.forward(found));
            x = match block.is_residual {
                true => x + found,
                false => found,
            };
        }
        let x = self.last.forward(x).mean_dim(3).mean_dim(2);
        self.classifier.forward(x.flatten(1, 3))
    }
}

pub const MOBILENET: Entry<MobileNet, Labeled<4>> = Entry {
    init: MobileNet::new,
    forward: |model, (images, classes)| classified(model.forward(images), classes),
    batch: |number, device| labeled([SAMPLES, 3, 16, 16], number, device),
    count: None,
};

/// A U-Net with batch norm. Each upsampling level reads the downsampling level of the same size.
#[derive(Module, Debug)]
pub struct UNet {
    stem: ConvNorm,
    down: Vec<ConvNorm>,
    grow: Vec<ConvTranspose2d>,
    up: Vec<ConvNorm>,
    head: Conv2d,
}

#[derive(Module, Debug)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm,
}

impl ConvNorm {
    fn new(channels: [usize; 2], stride: usize, device: &Device) -> Self {
        Self {
            conv: conv(channels, 3, stride, device),
            norm: norm(channels[1], device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        relu(self.norm.forward(self.conv.forward(x)))
    }
}

impl UNet {
    fn new(device: &Device) -> Self {
        let grow = |channels| {
            ConvTranspose2dConfig::new(channels, [2, 2])
                .with_stride([2, 2])
                .init(device)
        };
        Self {
            stem: ConvNorm::new([1, 4], 1, device),
            down: vec![
                ConvNorm::new([4, 6], 2, device),
                ConvNorm::new([6, 8], 2, device),
            ],
            grow: vec![grow([8, 6]), grow([6, 4])],
            up: vec![
                ConvNorm::new([12, 6], 1, device),
                ConvNorm::new([8, 4], 1, device),
            ],
            head: conv([4, 1], 1, 1, device),
        }
    }

    fn forward(&self, image: Tensor<4>) -> Tensor<4> {
        let mut x = self.stem.forward(image);
        let mut skips = Vec::new();
        for down in &self.down {
            skips.push(x.clone());
            x = down.forward(x);
        }
        for (grow, up) in self.grow.iter().zip(&self.up) {
            let skip = skips.pop().expect("as many levels up as down");
            x = up.forward(Tensor::cat(vec![grow.forward(x), skip], 1));
        }
        self.head.forward(x)
    }
}

pub const UNET: Entry<UNet, (Tensor<4>, Tensor<4>)> = Entry {
    init: UNet::new,
    forward: |model, (image, expected)| {
        let found = model.forward(image);
        Outputs::loss((found.clone() - expected).powf_scalar(2.0).mean()).with("image", found)
    },
    batch: |number, device| {
        let shape = [SAMPLES, 1, 8, 8];
        (
            floats(shape, number, device),
            floats(shape, number + 1000, device),
        )
    },
    count: None,
};
