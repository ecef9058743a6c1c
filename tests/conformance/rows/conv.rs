//! Convolutions.

use burn::nn::conv::{
    Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, Conv3d, Conv3dConfig, ConvTranspose1d,
    ConvTranspose1dConfig, ConvTranspose2d, ConvTranspose2dConfig, ConvTranspose3d,
    ConvTranspose3dConfig, DeformConv2d, DeformConv2dConfig,
};
use burn::nn::{PaddingConfig1d, PaddingConfig2d, PaddingConfig3d};

use super::{Family, family};
use crate::inputs::{between, floats};
use crate::row::{Outcome, row};

pub fn rows() -> Family {
    let mut rows = plain();
    rows.extend(transposed());
    rows.extend(deformed());
    rows
}

fn plain() -> Family {
    family![
        row(
            "",
            |device| Conv1dConfig::new(2, 4, 3).init(device),
            |device| floats([2, 2, 7], 1, device),
            |conv: &Conv1d, x| Outcome::of(conv.forward(x)),
        ),
        row(
            "strided, dilated, grouped, padded",
            |device| {
                Conv1dConfig::new(2, 4, 3)
                    .with_stride(2)
                    .with_dilation(2)
                    .with_groups(2)
                    .with_padding(PaddingConfig1d::Explicit(2, 1))
                    .init(device)
            },
            |device| floats([2, 2, 9], 2, device),
            |conv: &Conv1d, x| Outcome::of(conv.forward(x)),
        ),
        row(
            "same padding",
            |device| {
                Conv2dConfig::new([2, 3], [3, 3])
                    .with_padding(PaddingConfig2d::Same)
                    .init(device)
            },
            |device| floats([2, 2, 5, 6], 3, device),
            |conv: &Conv2d, x| Outcome::of(conv.forward(x)),
        ),
        row(
            "strided, dilated, grouped, padded unevenly, without bias",
            |device| {
                Conv2dConfig::new([4, 4], [2, 3])
                    .with_stride([2, 1])
                    .with_dilation([1, 2])
                    .with_groups(4)
                    .with_padding(PaddingConfig2d::Explicit(1, 2, 0, 1))
                    .with_bias(false)
                    .init(device)
            },
            |device| floats([2, 4, 6, 7], 4, device),
            |conv: &Conv2d, x| Outcome::of(conv.forward(x)),
        ),
        row(
            "",
            |device| {
                Conv3dConfig::new([2, 3], [2, 2, 3])
                    .with_stride([1, 2, 1])
                    .with_padding(PaddingConfig3d::Explicit(1, 0, 1))
                    .init(device)
            },
            |device| floats([2, 2, 3, 4, 5], 5, device),
            |conv: &Conv3d, x| Outcome::of(conv.forward(x)),
        ),
    ]
}

fn transposed() -> Family {
    family![
        row(
            "",
            |device| {
                ConvTranspose1dConfig::new([2, 4], 3)
                    .with_stride(2)
                    .with_padding(1)
                    .with_padding_out(1)
                    .init(device)
            },
            |device| floats([2, 2, 5], 6, device),
            |conv: &ConvTranspose1d, x| Outcome::of(conv.forward(x)),
        ),
        row(
            "grouped, dilated",
            |device| {
                ConvTranspose2dConfig::new([4, 2], [3, 2])
                    .with_stride([1, 2])
                    .with_dilation([2, 1])
                    .with_groups(2)
                    .init(device)
            },
            |device| floats([2, 4, 3, 4], 7, device),
            |conv: &ConvTranspose2d, x| Outcome::of(conv.forward(x)),
        ),
        row(
            "",
            |device| ConvTranspose3dConfig::new([2, 3], [2, 3, 2]).init(device),
            |device| floats([1, 2, 3, 2, 3], 8, device),
            |conv: &ConvTranspose3d, x| Outcome::of(conv.forward(x)),
        ),
    ]
}

fn deformed() -> Family {
    family![
        row(
            "with a mask",
            |device| DeformConv2dConfig::new([2, 3], [2, 2]).init(device),
            |device| {
                (
                    floats([2, 2, 4, 5], 9, device),
                    between([-0.8, 0.8], [2, 8, 3, 4], 10, device),
                    Some(between([0.0, 1.0], [2, 4, 3, 4], 11, device)),
                )
            },
            |conv: &DeformConv2d, (x, offset, mask)| Outcome::of(conv.forward(x, offset, mask)),
        ),
        row(
            "without a mask",
            |device| {
                DeformConv2dConfig::new([2, 4], [2, 2])
                    .with_weight_groups(2)
                    .with_offset_groups(2)
                    .init(device)
            },
            |device| {
                (
                    floats([2, 2, 4, 5], 12, device),
                    between([-0.8, 0.8], [2, 16, 3, 4], 13, device),
                )
            },
            |conv: &DeformConv2d, (x, offset)| Outcome::of(conv.forward(x, offset, None)),
        ),
    ]
}
