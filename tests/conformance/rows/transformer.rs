//! Transformers.

use burn::nn::PReluConfig;
use burn::nn::activation::ActivationConfig;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::transformer::{
    PositionWiseFeedForward, PositionWiseFeedForwardConfig, TransformerDecoder,
    TransformerDecoderConfig, TransformerDecoderInput, TransformerDecoderLayer, TransformerEncoder,
    TransformerEncoderConfig, TransformerEncoderInput, TransformerEncoderLayer,
};
use burn::tensor::{Device, s};

use super::{Family, family};
use crate::inputs::{floats, mask};
use crate::row::{Outcome, Tracing, row};

pub fn rows() -> Family {
    let mut rows = feed_forward();
    rows.extend(encoders());
    rows.extend(decoders());
    rows
}

fn feed_forward() -> Family {
    family![
        row(
            "without dropout",
            |device| {
                PositionWiseFeedForwardConfig::new(4, 6)
                    .with_dropout(0.0)
                    .init(device)
            },
            |device| floats([2, 3, 4], 1, device),
            |block: &PositionWiseFeedForward, x| Outcome::of(block.forward(x)),
        ),
        row(
            "dropout",
            |device| PositionWiseFeedForwardConfig::new(4, 6).init(device),
            |device| floats([2, 3, 4], 2, device),
            |block: &PositionWiseFeedForward, x| Outcome::of(block.forward(x)),
        )
        .tracing(Tracing::DrawsInTraining),
        row(
            "a parameter in the skipped activation field",
            |device| {
                PositionWiseFeedForwardConfig::new(4, 6)
                    .with_dropout(0.0)
                    .with_activation(ActivationConfig::PRelu(PReluConfig::new()))
                    .init(device)
            },
            |device| floats([2, 3, 4], 3, device),
            |block: &PositionWiseFeedForward, x| Outcome::of(block.forward(x)),
        ),
    ]
}

fn encoders() -> Family {
    family![
        row(
            "masked, without dropout",
            |device| {
                let config = TransformerEncoderConfig::new(4, 6, 2, 2);
                TransformerEncoderLayer::new(&config.with_dropout(0.0), device)
            },
            |device| (floats([2, 3, 4], 4, device), mask([2, 3], device)),
            |layer: &TransformerEncoderLayer, (x, pad)| {
                let causal = generate_autoregressive_mask(2, 3, &x.device());
                Outcome::of(layer.forward(x, Some(pad), Some(causal)))
            },
        ),
        row(
            "without dropout",
            |device| {
                TransformerEncoderConfig::new(4, 6, 2, 2)
                    .with_dropout(0.0)
                    .init(device)
            },
            |device| (floats([2, 3, 4], 5, device), mask([2, 3], device)),
            |encoder: &TransformerEncoder, (x, pad)| {
                let input = TransformerEncoderInput::new(x).mask_pad(pad);
                Outcome::of(encoder.forward(input))
            },
        ),
        row(
            "norm first, quiet softmax, dropout",
            |device| {
                TransformerEncoderConfig::new(4, 6, 2, 2)
                    .with_norm_first(true)
                    .with_quiet_softmax(true)
                    .init(device)
            },
            |device| floats([2, 3, 4], 6, device),
            |encoder: &TransformerEncoder, x| {
                Outcome::of(encoder.forward(TransformerEncoderInput::new(x)))
            },
        )
        .tracing(Tracing::DrawsInTraining),
        row(
            "cached, token by token",
            |device| {
                TransformerEncoderConfig::new(4, 6, 2, 2)
                    .with_dropout(0.0)
                    .init(device)
            },
            |device| floats([2, 3, 4], 7, device),
            |encoder: &TransformerEncoder, x| {
                let mut cache = encoder.new_autoregressive_cache();
                let mut outcome = Outcome::default();
                for end in 1..=3 {
                    let input = TransformerEncoderInput::new(x.clone().slice(s![.., 0..end, ..]));
                    outcome =
                        outcome.and(encoder.forward_autoregressive_inference(input, &mut cache));
                }
                outcome
            },
        ),
    ]
}

fn decoders() -> Family {
    family![
        row(
            "without dropout",
            |device| {
                let config = TransformerDecoderConfig::new(4, 6, 2, 1);
                TransformerDecoderLayer::new(&config.with_dropout(0.0), device)
            },
            |device| (floats([2, 3, 4], 8, device), floats([2, 5, 4], 9, device)),
            |layer: &TransformerDecoderLayer, (target, memory)| {
                // The layer returns its input with another target, whose field is private; a decoder without
                // layers returns it.
                let output = layer.forward(TransformerDecoderInput::new(target, memory));
                let none = TransformerDecoderConfig::new(4, 6, 2, 0);
                Outcome::of(none.init(&Device::flex()).forward(output))
            },
        ),
        row(
            "masked, without dropout",
            |device| {
                TransformerDecoderConfig::new(4, 6, 2, 2)
                    .with_dropout(0.0)
                    .with_norm_first(true)
                    .init(device)
            },
            |device| {
                (
                    (floats([2, 3, 4], 10, device), mask([2, 3], device)),
                    (floats([2, 5, 4], 11, device), mask([2, 5], device)),
                )
            },
            |decoder: &TransformerDecoder, ((target, target_pad), (memory, memory_pad))| {
                let causal = generate_autoregressive_mask(2, 3, &target.device());
                let input = TransformerDecoderInput::new(target, memory)
                    .target_mask_pad(target_pad)
                    .target_mask_attn(causal)
                    .memory_mask_pad(memory_pad);
                Outcome::of(decoder.forward(input))
            },
        ),
        row(
            "dropout",
            |device| TransformerDecoderConfig::new(4, 6, 2, 2).init(device),
            |device| (floats([2, 3, 4], 12, device), floats([2, 5, 4], 13, device)),
            |decoder: &TransformerDecoder, (target, memory)| {
                Outcome::of(decoder.forward(TransformerDecoderInput::new(target, memory)))
            },
        )
        .tracing(Tracing::DrawsInTraining),
        row(
            "cached, token by token",
            |device| {
                TransformerDecoderConfig::new(4, 6, 2, 2)
                    .with_dropout(0.0)
                    .init(device)
            },
            |device| (floats([2, 3, 4], 14, device), floats([2, 5, 4], 15, device)),
            |decoder: &TransformerDecoder, (target, memory)| {
                let mut cache = decoder.new_autoregressive_cache();
                let mut outcome = Outcome::default();
                for end in 1..=3 {
                    let target = target.clone().slice(s![.., 0..end, ..]);
                    let input = TransformerDecoderInput::new(target, memory.clone());
                    outcome =
                        outcome.and(decoder.forward_autoregressive_inference(input, &mut cache));
                }
                outcome
            },
        ),
    ]
}
