//! Normalization.

use burn::nn::norm::{Normalization, NormalizationConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, GroupNorm, GroupNormConfig, InstanceNorm, InstanceNormConfig,
    LayerNorm, LayerNormConfig, LocalResponseNorm, LocalResponseNormConfig, RmsNorm, RmsNormConfig,
};

use super::{Family, family};
use crate::inputs::floats;
use crate::row::{Outcome, row};

pub fn rows() -> Family {
    let mut rows: Family = family![
        row(
            "",
            |device| BatchNormConfig::new(3).init(device),
            |device| floats([4, 3, 5], 1, device),
            |norm: &BatchNorm, x| Outcome::of(norm.forward(x)),
        ),
        row(
            "",
            |device| GroupNormConfig::new(2, 4).init(device),
            |device| floats([2, 4, 5], 2, device),
            |norm: &GroupNorm, x| Outcome::of(norm.forward(x)),
        ),
        row(
            "not affine",
            |device| GroupNormConfig::new(2, 4).with_affine(false).init(device),
            |device| floats([2, 4, 3, 2], 3, device),
            |norm: &GroupNorm, x| Outcome::of(norm.forward(x)),
        ),
        row(
            "",
            |device| InstanceNormConfig::new(4).init(device),
            |device| floats([2, 4, 5], 4, device),
            |norm: &InstanceNorm, x| Outcome::of(norm.forward(x)),
        ),
        row(
            "",
            |device| LayerNormConfig::new(5).init(device),
            |device| floats([2, 4, 5], 5, device),
            |norm: &LayerNorm, x| Outcome::of(norm.forward(x)),
        ),
        row(
            "without bias",
            |device| LayerNormConfig::new(5).with_bias(false).init(device),
            |device| floats([4, 5], 6, device),
            |norm: &LayerNorm, x| Outcome::of(norm.forward(x)),
        ),
        row(
            "",
            |device| RmsNormConfig::new(5).init(device),
            |device| floats([2, 4, 5], 7, device),
            |norm: &RmsNorm, x| Outcome::of(norm.forward(x)),
        ),
        row(
            "",
            |_| LocalResponseNormConfig::new(3).init(),
            |device| floats([2, 4, 3, 2], 8, device),
            |norm: &LocalResponseNorm, x| Outcome::of(norm.forward(x)),
        ),
    ];
    rows.extend(variants());
    rows
}

/// Every variant of the wrapper.
fn variants() -> Family {
    macro_rules! variant {
        ($($case:literal: $config:expr),* $(,)?) => {
            family![$(row(
                $case,
                |device| $config.init(device),
                |device| floats([4, 4, 4], 9, device),
                |norm: &Normalization, x| Outcome::of(norm.forward(x)),
            )),*]
        };
    }
    variant![
        "Identity": NormalizationConfig::Identity,
        "Batch": NormalizationConfig::Batch(BatchNormConfig::new(4)),
        "Group": NormalizationConfig::Group(GroupNormConfig::new(2, 4)),
        "Instance": NormalizationConfig::Instance(InstanceNormConfig::new(4)),
        "Layer": NormalizationConfig::Layer(LayerNormConfig::new(4)),
        "Rms": NormalizationConfig::Rms(RmsNormConfig::new(4)),
    ]
}
