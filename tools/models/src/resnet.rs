//! Residual blocks of convolutions with group norms, in groups that halve the image size and double the
//! channels.

use burn::config::Config;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{GroupNorm, GroupNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

/// Sizes of a [`ResNet`].
#[derive(Config, Debug)]
pub struct ResNetConfig {
    /// Channels of the first group; a multiple of 4.
    pub channels: usize,
    /// Number of groups.
    pub groups: usize,
    /// Blocks of a group.
    pub blocks: usize,
    /// Number of scores of an image.
    pub classes: usize,
}

/// Groups of residual blocks between a convolution and a projection.
#[derive(Module, Debug)]
pub struct ResNet {
    stem: Conv2d,
    blocks: Vec<Block>,
    head: Linear,
}

#[derive(Module, Debug)]
struct Block {
    conv_1: Conv2d,
    norm_1: GroupNorm,
    conv_2: Conv2d,
    norm_2: GroupNorm,
    /// Present if a block changes the shape.
    shortcut: Option<Conv2d>,
}

fn conv(channels: [usize; 2], stride: usize, device: &Device) -> Conv2d {
    Conv2dConfig::new(channels, [3, 3])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .init(device)
}

impl ResNetConfig {
    /// Initializes the model.
    pub fn init(&self, device: &Device) -> ResNet {
        let mut blocks = Vec::new();
        let mut from = self.channels;
        for group in 0..self.groups {
            let to = self.channels << group;
            for block in 0..self.blocks {
                let stride = if group > 0 && block == 0 { 2 } else { 1 };
                let norm = || GroupNormConfig::new(4, to).init(device);
                blocks.push(Block {
                    conv_1: conv([from, to], stride, device),
                    norm_1: norm(),
                    conv_2: conv([to, to], 1, device),
                    norm_2: norm(),
                    shortcut: (stride > 1).then(|| {
                        Conv2dConfig::new([from, to], [1, 1])
                            .with_stride([stride, stride])
                            .init(device)
                    }),
                });
                from = to;
            }
        }
        ResNet {
            stem: conv([3, self.channels], 1, device),
            blocks,
            head: LinearConfig::new(from, self.classes).init(device),
        }
    }
}

impl Block {
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let skip = match &self.shortcut {
            Some(shortcut) => shortcut.forward(x.clone()),
            None => x.clone(),
        };
        let x = relu(self.norm_1.forward(self.conv_1.forward(x)));
        relu(self.norm_2.forward(self.conv_2.forward(x)) + skip)
    }
}

impl ResNet {
    /// Returns scores of shape `[batch, classes]` for images of shape `[batch, 3, height, width]`.
    pub fn forward(&self, pictures: Tensor<4>) -> Tensor<2> {
        let x = relu(self.stem.forward(pictures));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let x = x.mean_dim(3).mean_dim(2).flatten::<2>(1, 3);
        self.head.forward(x)
    }
}
