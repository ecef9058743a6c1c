//! Linear, embedding, positions, noise and distance.

use burn::nn::{
    CosineSimilarity, CosineSimilarityConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig,
    GaussianNoise, GaussianNoiseConfig, Identity, Initializer, Linear, LinearConfig, LinearLayout,
    PairwiseDistance, PairwiseDistanceConfig, PositionalEncoding, PositionalEncodingConfig,
    RotaryEncoding, RotaryEncodingConfig,
};

use super::{Family, family};
use crate::inputs::{floats, ints};
use crate::row::{Outcome, Tracing, row};

pub fn rows() -> Family {
    let mut rows: Family = family![
        row(
            "",
            |device| LinearConfig::new(5, 4).init(device),
            |device| floats([3, 5], 1, device),
            |linear: &Linear, x| Outcome::of(linear.forward(x)),
        ),
        row(
            "without bias, rank 3",
            |device| LinearConfig::new(5, 4).with_bias(false).init(device),
            |device| floats([2, 3, 5], 2, device),
            |linear: &Linear, x| Outcome::of(linear.forward(x)),
        ),
        row(
            "column layout",
            |device| {
                LinearConfig::new(5, 4)
                    .with_layout(LinearLayout::Col)
                    .init(device)
            },
            |device| floats([3, 5], 3, device),
            |linear: &Linear, x| Outcome::of(linear.forward(x)),
        ),
        row(
            "Orthogonal, which has no bias",
            |device| {
                LinearConfig::new(5, 4)
                    .with_bias(false)
                    .with_initializer(Initializer::Orthogonal { gain: 1.5 })
                    .init(device)
            },
            |device| floats([3, 5], 18, device),
            |linear: &Linear, x| Outcome::of(linear.forward(x)),
        ),
        row(
            "",
            |device| EmbeddingConfig::new(7, 4).init(device),
            |device| ints([0, 7], [2, 5], 4, device),
            |embedding: &Embedding, x| Outcome::of(embedding.forward(x)),
        ),
        row(
            "",
            |_| Identity::new(),
            |device| floats([2, 3], 5, device),
            |identity: &Identity, x| Outcome::of(identity.forward(x)),
        ),
        row(
            "",
            |device| {
                PositionalEncodingConfig::new(4)
                    .with_max_sequence_size(9)
                    .init(device)
            },
            |device| floats([2, 5, 4], 6, device),
            |positions: &PositionalEncoding, x| Outcome::of(positions.forward(x)),
        ),
        row(
            "",
            |device| RotaryEncodingConfig::new(9, 4).init(device),
            |device| floats([2, 3, 5, 4], 7, device),
            |rotary: &RotaryEncoding, x| {
                Outcome::of(rotary.forward(x.clone())).and(rotary.apply(x, 2))
            },
        ),
        row(
            "scaled frequencies, shifted",
            |device| {
                let config = RotaryEncodingConfig::new(9, 4);
                let mut rotary = config.init_with_frequency_scaling(|theta| theta / 2.0, device);
                rotary.shift(3);
                rotary
            },
            |device| floats([2, 5, 4], 8, device),
            |rotary: &RotaryEncoding, x| Outcome::of(rotary.forward(x)),
        ),
        row(
            "",
            |_| DropoutConfig::new(0.4).init(),
            |device| floats([4, 6], 9, device),
            |dropout: &Dropout, x| Outcome::of(dropout.forward(x)),
        )
        .tracing(Tracing::DrawsInTraining),
        row(
            "",
            |_| GaussianNoiseConfig::new(0.3).init(),
            |device| floats([4, 6], 10, device),
            |noise: &GaussianNoise, x| Outcome::of(noise.forward(x)),
        )
        .tracing(Tracing::DrawsInTraining),
        row(
            "",
            |_| CosineSimilarityConfig::new().init(),
            |device| (floats([3, 5], 11, device), floats([3, 5], 12, device)),
            |similarity: &CosineSimilarity, (x, y)| Outcome::of(similarity.forward(x, y)),
        ),
        row(
            "",
            |_| PairwiseDistanceConfig::new().init(),
            |device| (floats([3, 5], 13, device), floats([3, 5], 14, device)),
            |distance: &PairwiseDistance, (x, y)| Outcome::of(distance.forward(x, y)),
        ),
        row(
            "p = 1",
            |_| PairwiseDistanceConfig::new().with_p(1.0).init(),
            |device| (floats([3, 5], 15, device), floats([3, 5], 16, device)),
            |distance: &PairwiseDistance, (x, y)| Outcome::of(distance.forward(x, y)),
        ),
    ];
    rows.extend(initializers());
    rows
}

/// A linear layer with every initializer that Burn has.
fn initializers() -> Family {
    macro_rules! initializer {
        ($($case:literal: $initializer:expr),* $(,)?) => {
            family![$(row(
                $case,
                |device| LinearConfig::new(5, 4).with_initializer($initializer).init(device),
                |device| floats([3, 5], 17, device),
                |linear: &Linear, x| Outcome::of(linear.forward(x)),
            )),*]
        };
    }
    initializer![
        "Constant": Initializer::Constant { value: 0.25 },
        "Ones": Initializer::Ones,
        "Uniform": Initializer::Uniform { min: -0.5, max: 1.0 },
        "Normal": Initializer::Normal { mean: 0.5, std: 2.0 },
        "KaimingNormal": Initializer::KaimingNormal { gain: 1.5, fan_out_only: true },
        "XavierUniform": Initializer::XavierUniform { gain: 1.5 },
        "XavierNormal": Initializer::XavierNormal { gain: 1.5 },
    ]
}
