//! Normalization.

use burn::nn::norm::{Normalization, NormalizationConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, GroupNorm, GroupNormConfig, InstanceNorm, InstanceNormConfig,
    LayerNorm, LayerNormConfig, LocalResponseNorm, LocalResponseNormConfig, RmsNorm, RmsNormConfig,
};

use super::{Family, family};
use crate::inputs::floats;
use crate::row::{Outcome, Tracing, row};

/// Returns the error of training with a batch norm at a path.
macro_rules! batch_norm {
    ($path:literal) => {
        Tracing::TrainingRefused(concat!(
            "the forward could not be recorded, and `",
            $path,
            "` is a BatchNorm: it moves its running statistics between devices, which can't be \
             recorded; use GroupNorm, LayerNorm, RmsNorm or InstanceNorm instead, or train with \
             fixed statistics (`config.init(&device.clone().without_autodiff()).freeze()`): the recorded \
             code moved a fake tensor between devices or autodiff contexts (Cannot move a tensor to \
             a capture device with autodiff enabled; remove autodiff with without_autodiff() before \
             the transfer.); `to_device`, `inner` and `from_inner` can't be recorded: create tensors \
             on the device of their input"
        ))
    };
}

pub fn rows() -> Family {
    let mut rows: Family = family![
        row(
            "",
            |device| BatchNormConfig::new(3).init(device),
            |device| floats([4, 3, 5], 1, device),
            |norm: &BatchNorm, x| Outcome::of(norm.forward(x)),
        )
        .tracing(batch_norm!("module")),
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
        ($($case:literal: $config:expr, $tracing:expr),* $(,)?) => {
            family![$(row(
                $case,
                |device| $config.init(device),
                |device| floats([4, 4, 4], 9, device),
                |norm: &Normalization, x| Outcome::of(norm.forward(x)),
            ).tracing($tracing)),*]
        };
    }
    variant![
        "Identity": NormalizationConfig::Identity, Tracing::Equal,
        "Batch": NormalizationConfig::Batch(BatchNormConfig::new(4)), batch_norm!("module.Batch"),
        "Group": NormalizationConfig::Group(GroupNormConfig::new(2, 4)), Tracing::Equal,
        "Instance": NormalizationConfig::Instance(InstanceNormConfig::new(4)), Tracing::Equal,
        "Layer": NormalizationConfig::Layer(LayerNormConfig::new(4)), Tracing::Equal,
        "Rms": NormalizationConfig::Rms(RmsNormConfig::new(4)), Tracing::Equal,
    ]
}
