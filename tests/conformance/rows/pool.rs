//! Pooling.

use burn::nn::pool::{
    AdaptiveAvgPool1d, AdaptiveAvgPool1dConfig, AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig,
    AdaptiveAvgPool3d, AdaptiveAvgPool3dConfig, AvgPool1d, AvgPool1dConfig, AvgPool2d,
    AvgPool2dConfig, MaxPool1d, MaxPool1dConfig, MaxPool2d, MaxPool2dConfig,
};
use burn::nn::{PaddingConfig1d, PaddingConfig2d};

use super::{Family, family};
use crate::inputs::floats;
use crate::row::{Outcome, row};

pub fn rows() -> Family {
    let mut rows = adaptive();
    rows.extend(averages());
    rows.extend(maxima());
    rows
}

fn adaptive() -> Family {
    family![
        row(
            "",
            |_| AdaptiveAvgPool1dConfig::new(3).init(),
            |device| floats([2, 3, 7], 1, device),
            |pool: &AdaptiveAvgPool1d, x| Outcome::of(pool.forward(x)),
        ),
        row(
            "",
            |_| AdaptiveAvgPool2dConfig::new([3, 2]).init(),
            |device| floats([2, 3, 7, 5], 2, device),
            |pool: &AdaptiveAvgPool2d, x| Outcome::of(pool.forward(x)),
        ),
        row(
            "",
            |_| AdaptiveAvgPool3dConfig::new([2, 3, 2]).init(),
            |device| floats([2, 2, 4, 7, 3], 3, device),
            |pool: &AdaptiveAvgPool3d, x| Outcome::of(pool.forward(x)),
        ),
    ]
}

fn averages() -> Family {
    family![
        row(
            "",
            |_| AvgPool1dConfig::new(3).init(),
            |device| floats([2, 3, 7], 4, device),
            |pool: &AvgPool1d, x| Outcome::of(pool.forward(x)),
        ),
        row(
            "padded unevenly, padding not counted, ceiling",
            |_| {
                AvgPool1dConfig::new(3)
                    .with_stride(2)
                    .with_padding(PaddingConfig1d::Explicit(1, 0))
                    .with_count_include_pad(false)
                    .with_ceil_mode(true)
                    .init()
            },
            |device| floats([2, 3, 7], 5, device),
            |pool: &AvgPool1d, x| Outcome::of(pool.forward(x)),
        ),
        row(
            "",
            |_| AvgPool2dConfig::new([2, 3]).init(),
            |device| floats([2, 3, 5, 7], 6, device),
            |pool: &AvgPool2d, x| Outcome::of(pool.forward(x)),
        ),
        row(
            "same padding, overlapping, ceiling",
            |_| {
                AvgPool2dConfig::new([3, 3])
                    .with_strides([1, 1])
                    .with_padding(PaddingConfig2d::Same)
                    .with_ceil_mode(true)
                    .init()
            },
            |device| floats([2, 3, 5, 7], 7, device),
            |pool: &AvgPool2d, x| Outcome::of(pool.forward(x)),
        ),
    ]
}

fn maxima() -> Family {
    family![
        row(
            "",
            |_| MaxPool1dConfig::new(3).init(),
            |device| floats([2, 3, 7], 8, device),
            |pool: &MaxPool1d, x| Outcome::of(pool.forward(x)),
        ),
        row(
            "padded, dilated, overlapping",
            |_| {
                MaxPool1dConfig::new(3)
                    .with_stride(1)
                    .with_dilation(2)
                    .with_padding(PaddingConfig1d::Explicit(1, 1))
                    .init()
            },
            |device| floats([2, 3, 8], 9, device),
            |pool: &MaxPool1d, x| Outcome::of(pool.forward(x)),
        ),
        row(
            "",
            |_| MaxPool2dConfig::new([2, 3]).init(),
            |device| floats([2, 3, 5, 7], 10, device),
            |pool: &MaxPool2d, x| Outcome::of(pool.forward(x)),
        ),
        row(
            "padded unevenly, dilated, overlapping",
            |_| {
                MaxPool2dConfig::new([2, 2])
                    .with_strides([1, 1])
                    .with_dilation([2, 1])
                    .with_padding(PaddingConfig2d::Explicit(1, 0, 0, 1))
                    .init()
            },
            |device| floats([2, 3, 5, 6], 11, device),
            |pool: &MaxPool2d, x| Outcome::of(pool.forward(x)),
        ),
    ]
}
