//! Attention, with masks and caches.

use burn::nn::attention::{
    CrossAttention, CrossAttentionCache, CrossAttentionConfig, MhaCache, MhaInput,
    MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn::tensor::s;

use super::{Family, family};
use crate::inputs::{floats, mask};
use crate::row::{Outcome, Tracing, row};

pub fn rows() -> Family {
    let mut rows = heads();
    rows.extend(cross());
    rows
}

fn heads() -> Family {
    family![
        row(
            "without dropout",
            |device| {
                MultiHeadAttentionConfig::new(6, 2)
                    .with_dropout(0.0)
                    .init(device)
            },
            |device| {
                (
                    floats([2, 3, 6], 1, device),
                    floats([2, 4, 6], 2, device),
                    floats([2, 4, 6], 3, device),
                )
            },
            |attention: &MultiHeadAttention, (query, key, value)| {
                let output = attention.forward(MhaInput::new(query, key, value));
                Outcome::of(output.context).and(output.weights)
            },
        ),
        row(
            "masked, quiet softmax",
            |device| {
                MultiHeadAttentionConfig::new(6, 2)
                    .with_dropout(0.0)
                    .with_quiet_softmax(true)
                    .init(device)
            },
            |device| (floats([2, 4, 6], 4, device), mask([2, 4], device)),
            |attention: &MultiHeadAttention, (x, pad)| {
                let causal = generate_autoregressive_mask(2, 4, &x.device());
                let input = MhaInput::self_attn(x).mask_pad(pad).mask_attn(causal);
                let output = attention.forward(input);
                Outcome::of(output.context).and(output.weights)
            },
        ),
        row(
            "dropout",
            |device| MultiHeadAttentionConfig::new(6, 2).init(device),
            |device| floats([2, 4, 6], 5, device),
            |attention: &MultiHeadAttention, x| {
                Outcome::of(attention.forward(MhaInput::self_attn(x)).context)
            },
        )
        .tracing(Tracing::DrawsInTraining),
        row(
            "cached, token by token",
            |device| {
                MultiHeadAttentionConfig::new(6, 2)
                    .with_dropout(0.0)
                    .init(device)
            },
            |device| floats([2, 3, 6], 6, device),
            |attention: &MultiHeadAttention, x| {
                let mut cache = MhaCache::autoregressive();
                let mut outcome = Outcome::default();
                for end in 1..=3 {
                    let input = MhaInput::self_attn(x.clone().slice(s![.., 0..end, ..]));
                    let output = attention.forward_cache(input, &mut cache);
                    outcome = outcome.and(output.context);
                }
                outcome
            },
        ),
    ]
}

fn cross() -> Family {
    family![
        row(
            "grouped heads, masked, without dropout",
            |device| {
                CrossAttentionConfig::new(6, 5, 4, 2, 3)
                    .with_dropout(0.0)
                    .init(device)
            },
            |device| {
                (
                    floats([2, 3, 6], 7, device),
                    floats([2, 4, 5], 8, device),
                    mask([2, 4], device),
                )
            },
            |attention: &CrossAttention, (query, context, mask)| {
                Outcome::of(attention.forward(query, context, Some(mask)))
            },
        ),
        row(
            "dropout, quiet softmax",
            |device| {
                CrossAttentionConfig::new(6, 5, 2, 2, 3)
                    .with_quiet_softmax(true)
                    .init(device)
            },
            |device| (floats([2, 3, 6], 9, device), floats([2, 4, 5], 10, device)),
            |attention: &CrossAttention, (query, context)| {
                Outcome::of(attention.forward(query, context, None))
            },
        )
        .tracing(Tracing::DrawsInTraining),
        row(
            "cached context",
            |device| {
                CrossAttentionConfig::new(6, 5, 2, 2, 3)
                    .with_dropout(0.0)
                    .init(device)
            },
            |device| {
                (
                    floats([2, 3, 6], 11, device),
                    floats([2, 3, 6], 12, device),
                    floats([2, 4, 5], 13, device),
                )
            },
            |attention: &CrossAttention, (first, second, context)| {
                let mut cache = CrossAttentionCache::new();
                let first = attention.forward_cache(first, context.clone(), None, &mut cache);
                let second = attention.forward_cache(second, context, None, &mut cache);
                Outcome::of(first).and(second)
            },
        ),
    ]
}
