//! The forward of the Llama model without caches, as a Burn author would write it.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::activation::{silu, softmax};
use burn::tensor::{Bool, Int, Tensor};

use super::{DecoderLayer, Llama, LlamaConfig};

/// Returns the logits of each token: `[batch, tokens]` to `[batch, tokens, vocabulary]`.
pub fn logits(config: &LlamaConfig, model: &Llama, tokens: Tensor<2, Int>) -> Tensor<3> {
    let [_, length] = tokens.dims();
    let mask = Tensor::<2, Bool>::tril_mask([length, length], 0, &tokens.device());
    let mut x = model.tokens.forward(tokens);
    for layer in &model.layers {
        let normed = layer.attention_norm.forward(x.clone());
        x = x + attention(config, model, layer, normed, mask.clone().unsqueeze::<4>());
        let normed = layer.feed_forward_norm.forward(x.clone());
        let gate = silu(layer.gate.forward(normed.clone()));
        x = x + layer.down.forward(gate * layer.up.forward(normed));
    }
    model.head.forward(model.norm.forward(x))
}

fn attention(
    config: &LlamaConfig,
    model: &Llama,
    layer: &DecoderLayer,
    x: Tensor<3>,
    mask: Tensor<4, Bool>,
) -> Tensor<3> {
    let [batch, length, hidden] = x.dims();
    let size = hidden / config.heads;
    let split =
        |x: Tensor<3>, heads: usize| x.reshape([batch, length, heads, size]).swap_dims(1, 2);
    let shared = |x: Tensor<4>| {
        let groups = config.heads / config.kv_heads;
        x.unsqueeze_dim::<5>(2)
            .repeat_dim(2, groups)
            .reshape([batch, config.heads, length, size])
    };
    let query = split(layer.query.forward(x.clone()), config.heads);
    let key = split(layer.key.forward(x.clone()), config.kv_heads);
    let value = split(layer.value.forward(x), config.kv_heads);
    let query = model.rotary.forward(query);
    let key = shared(model.rotary.forward(key));
    let scores = query.matmul(key.transpose()) / (size as f64).sqrt();
    let weights = softmax(scores.mask_fill(mask, f32::NEG_INFINITY), 3);
    let mixed = weights.matmul(shared(value)).swap_dims(1, 2);
    layer.output.forward(mixed.reshape([batch, length, hidden]))
}

/// Returns the mean cross entropy of the next tokens, in nats, for logits `[batch, tokens, vocabulary]` and targets
/// `[batch, tokens]`.
pub fn loss(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
    let [batch, length, vocabulary] = logits.dims();
    let loss = CrossEntropyLossConfig::new().init(&logits.device());
    loss.forward(
        logits.reshape([batch * length, vocabulary]),
        targets.reshape([batch * length]),
    )
}
