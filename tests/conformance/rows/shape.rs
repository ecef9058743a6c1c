//! Modules that move or resample elements.

use burn::nn::interpolate::{
    Interpolate1d, Interpolate1dConfig, Interpolate2d, Interpolate2dConfig, InterpolateMode,
};
use burn::nn::{
    Fold4d, Fold4dConfig, PixelShuffle, PixelShuffleConfig, PixelUnshuffle, PixelUnshuffleConfig,
    Unfold4d, Unfold4dConfig,
};

use super::{Family, family};
use crate::inputs::floats;
use crate::row::{Outcome, Tracing, row};

pub fn rows() -> Family {
    let mut rows: Family = family![
        row(
            "",
            |_| {
                Fold4dConfig::new([4, 5], [2, 2])
                    .with_padding([1, 0])
                    .init()
            },
            |device| floats([2, 8, 20], 1, device),
            |fold: &Fold4d, x| Outcome::of(fold.forward(x)),
        ),
        row(
            "",
            |_| {
                Unfold4dConfig::new([2, 3])
                    .with_stride([2, 1])
                    .with_padding([1, 1])
                    .init()
            },
            |device| floats([2, 3, 4, 5], 2, device),
            |unfold: &Unfold4d, x| Outcome::of(unfold.forward(x)),
        ),
        row(
            "",
            |_| PixelShuffleConfig::new(2).init(),
            |device| floats([2, 8, 3, 2], 3, device),
            |shuffle: &PixelShuffle, x| Outcome::of(shuffle.forward(x)),
        ),
        row(
            "",
            |_| PixelUnshuffleConfig::new(2).init(),
            |device| floats([2, 3, 4, 6], 4, device),
            |shuffle: &PixelUnshuffle, x| Outcome::of(shuffle.forward(x)),
        ),
    ];
    rows.extend(interpolations());
    rows
}

/// Every mode of the CPU backend; it has no `NearestExact`.
fn interpolations() -> Family {
    macro_rules! modes {
        ($($case:literal: $mode:ident, $tracing:expr),* $(,)?) => {
            family![$(
                row(
                    $case,
                    |_| Interpolate1dConfig::new()
                        .with_output_size(Some(7))
                        .with_mode(InterpolateMode::$mode)
                        .init(),
                    |device| floats([2, 3, 5], 5, device),
                    |interpolate: &Interpolate1d, x| Outcome::of(interpolate.forward(x)),
                ).tracing($tracing),
                row(
                    $case,
                    |_| Interpolate2dConfig::new()
                        .with_scale_factor(Some([1.5, 2.0]))
                        .with_mode(InterpolateMode::$mode)
                        .with_align_corners(false)
                        .init(),
                    |device| floats([2, 3, 4, 5], 6, device),
                    |interpolate: &Interpolate2d, x| Outcome::of(interpolate.forward(x)),
                ).tracing($tracing),
            )*]
        };
    }
    modes![
        "nearest": Nearest, Tracing::Equal,
        "linear": Linear, Tracing::Equal,
        "cubic": Cubic, Tracing::Equal,
        "lanczos": Lanczos, Tracing::InferenceOnly("the CPU backend has no backward for it"),
    ]
}
