//! The parameters of a Llama model, as a Burn author would write them.

pub mod forward;

use burn::module::Module;
use burn::nn::{
    Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig, RotaryEncoding,
    RotaryEncodingConfig,
};
use burn::tensor::Device;

/// Sizes of a model.
#[derive(Clone, Debug)]
pub struct LlamaConfig {
    /// Size of the residual stream.
    pub hidden: usize,
    /// Number of decoder layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Size inside the feed-forward network.
    pub feed_forward: usize,
    /// Number of tokens.
    pub vocabulary: usize,
    /// Longest sequence.
    pub context: usize,
}

/// Norms, grouped-query attention and a gated feed-forward network.
#[derive(Module, Debug)]
pub struct DecoderLayer {
    /// The norm before the attention.
    pub attention_norm: RmsNorm,
    /// The projection to queries.
    pub query: Linear,
    /// The projection to keys.
    pub key: Linear,
    /// The projection to values.
    pub value: Linear,
    /// The projection of the attention's result.
    pub output: Linear,
    /// The norm before the feed-forward network.
    pub feed_forward_norm: RmsNorm,
    /// The projection to the gate.
    pub gate: Linear,
    /// The projection that the gate is multiplied with.
    pub up: Linear,
    /// The projection back to the residual stream.
    pub down: Linear,
}

/// A decoder.
#[derive(Module, Debug)]
pub struct Llama {
    /// The embedding of tokens.
    pub tokens: Embedding,
    /// The encoding of positions, a constant.
    pub rotary: RotaryEncoding,
    /// The layers, one after the other.
    pub layers: Vec<DecoderLayer>,
    /// The norm before the head.
    pub norm: RmsNorm,
    /// The projection to the scores of tokens.
    pub head: Linear,
}

impl LlamaConfig {
    /// Returns the sizes of Llama 3 with 8 billion parameters.
    pub fn llama_3_8b() -> Self {
        Self {
            hidden: 4096,
            layers: 32,
            heads: 32,
            kv_heads: 8,
            feed_forward: 14336,
            vocabulary: 128_256,
            context: 8192,
        }
    }

    /// Returns the sizes of Llama 3 with 70 billion parameters.
    pub fn llama_3_70b() -> Self {
        Self {
            hidden: 8192,
            layers: 80,
            heads: 64,
            feed_forward: 28672,
            ..Self::llama_3_8b()
        }
    }

    /// Returns the sizes of Llama 3.1 with 405 billion parameters.
    pub fn llama_3_405b() -> Self {
        Self {
            hidden: 16384,
            layers: 126,
            heads: 128,
            feed_forward: 53248,
            ..Self::llama_3_8b()
        }
    }

    /// Initializes the model.
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

    fn init_layer(&self, head_size: usize, device: &Device) -> DecoderLayer {
        let (hidden, kv) = (self.hidden, self.kv_heads * head_size);
        DecoderLayer {
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
