//! A U-Net: an image is downsampled to a few pixels and upsampled again; each upsampling level reads the
//! downsampling level of the same size.

use burn::config::Config;
use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

/// Sizes of a [`UNet`].
#[derive(Config, Debug)]
pub struct UNetConfig {
    /// Channels of the first level.
    pub channels: usize,
    /// Number of levels below the first.
    pub levels: usize,
}

/// Levels of decreasing and of increasing size.
#[derive(Module, Debug)]
pub struct UNet {
    stem: Conv2d,
    down: Vec<Conv2d>,
    up: Vec<Up>,
    head: Conv2d,
}

#[derive(Module, Debug)]
struct Up {
    grow: ConvTranspose2d,
    join: Conv2d,
}

fn conv(channels: [usize; 2], stride: usize, device: &Device) -> Conv2d {
    Conv2dConfig::new(channels, [3, 3])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .init(device)
}

impl UNetConfig {
    /// Initializes the model.
    pub fn init(&self, device: &Device) -> UNet {
        let channels = |level: usize| self.channels << level;
        let up = |level: usize| Up {
            grow: ConvTranspose2dConfig::new([channels(level + 1), channels(level)], [2, 2])
                .with_stride([2, 2])
                .init(device),
            join: conv([2 * channels(level), channels(level)], 1, device),
        };
        UNet {
            stem: conv([3, self.channels], 1, device),
            down: (0..self.levels)
                .map(|level| conv([channels(level), channels(level + 1)], 2, device))
                .collect(),
            up: (0..self.levels).rev().map(up).collect(),
            head: conv([self.channels, 3], 1, device),
        }
    }
}

impl UNet {
    /// Returns an image of the shape of the input, `[batch, 3, height, width]`, whose height and width must
    /// be divisible by 2 once per level.
    pub fn forward(&self, picture: Tensor<4>) -> Tensor<4> {
        let mut x = relu(self.stem.forward(picture));
        let mut skips = Vec::new();
        for conv in &self.down {
            skips.push(x.clone());
            x = relu(conv.forward(x));
        }
        for (up, skip) in self.up.iter().zip(skips.into_iter().rev()) {
            let grown = up.grow.forward(x);
            x = relu(up.join.forward(Tensor::cat(vec![grown, skip], 1)));
        }
        self.head.forward(x)
    }
}
