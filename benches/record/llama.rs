//! The parameters of a Llama-3 model, as a Burn author would write them.

use burn::module::Module;
use burn::nn::{
    Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig, RotaryEncoding,
    RotaryEncodingConfig,
};
use burn::tensor::Device;

/// Sizes of a model.
#[derive(Clone, Debug)]
pub struct LlamaConfig {
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub feed_forward: usize,
    pub vocabulary: usize,
    pub context: usize,
}

/// Norms, grouped-query attention and a gated feed-forward network.
#[derive(Module, Debug)]
pub struct Layer {
    attention_norm: RmsNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    feed_forward_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// A decoder.
#[derive(Module, Debug)]
pub struct Llama {
    tokens: Embedding,
    rotary: RotaryEncoding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
}

impl LlamaConfig {
    /// Llama 3 of 70 billion parameters.
    pub fn llama_3_70b() -> Self {
        Self {
            hidden: 8192,
            layers: 80,
            heads: 64,
            kv_heads: 8,
            feed_forward: 28672,
            vocabulary: 128_256,
            context: 8192,
        }
    }

    /// The model.
    pub fn init(&self, device: &Device) -> Llama {
        let head_size = self.hidden / self.heads;
        Llama {
            tokens: EmbeddingConfig::new(self.vocabulary, self.hidden).init(device),
            rotary: RotaryEncodingConfig::new(self.context, head_size).init(device),
            layers: (0..self.layers)
                .map(|_| self.init_layer(head_size, device))
                .collect(),
            norm: RmsNormConfig::new(self.hidden).init(device),
            head: linear(self.hidden, self.vocabulary, device),
        }
    }

    fn init_layer(&self, head_size: usize, device: &Device) -> Layer {
        let (hidden, kv) = (self.hidden, self.kv_heads * head_size);
        Layer {
            attention_norm: RmsNormConfig::new(hidden).init(device),
            query: linear(hidden, hidden, device),
            key: linear(hidden, kv, device),
            value: linear(hidden, kv, device),
            output: linear(hidden, hidden, device),
            feed_forward_norm: RmsNormConfig::new(hidden).init(device),
            gate: linear(hidden, self.feed_forward, device),
            up: linear(hidden, self.feed_forward, device),
            down: linear(self.feed_forward, hidden, device),
        }
    }
}

fn linear(from: usize, to: usize, device: &Device) -> Linear {
    LinearConfig::new(from, to).with_bias(false).init(device)
}
