//! A decoder-only language model, written for plain Burn: it does not depend on Tinderbox.

use burn::config::Config;
use burn::module::Module;
use burn::nn::attention::{
    MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig, Linear,
    LinearConfig,
};
use burn::tensor::{Bool, DType, Device, Int, Tensor};

/// Sizes of the model.
#[derive(Config, Debug)]
pub struct GptConfig {
    /// Number of different tokens.
    pub vocabulary: usize,
    /// Longest sequence.
    #[config(default = 64)]
    pub context: usize,
    /// Width of the residual stream.
    #[config(default = 128)]
    pub width: usize,
    /// Number of blocks.
    #[config(default = 4)]
    pub layers: usize,
    /// Attention heads of each block.
    #[config(default = 4)]
    pub heads: usize,
    /// Probability that an activation is dropped in training.
    #[config(default = 0.1)]
    pub dropout: f64,
}

/// A decoder-only transformer.
#[derive(Module, Debug)]
pub struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    dropout: Dropout,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

/// Causal attention and a feed-forward network, each preceded by a norm and with a residual connection.
#[derive(Module, Debug)]
pub struct Block {
    norm_1: LayerNorm,
    attention: MultiHeadAttention,
    norm_2: LayerNorm,
    up: Linear,
    activation: Gelu,
    down: Linear,
    dropout: Dropout,
}

impl GptConfig {
    /// Initializes a model.
    pub fn init(&self, device: &Device) -> Gpt {
        Gpt {
            tokens: EmbeddingConfig::new(self.vocabulary, self.width).init(device),
            positions: EmbeddingConfig::new(self.context, self.width).init(device),
            dropout: DropoutConfig::new(self.dropout).init(),
            blocks: (0..self.layers).map(|_| self.init_block(device)).collect(),
            norm: LayerNormConfig::new(self.width).init(device),
            head: LinearConfig::new(self.width, self.vocabulary)
                .with_bias(false)
                .init(device),
        }
    }

    fn init_block(&self, device: &Device) -> Block {
        Block {
            norm_1: LayerNormConfig::new(self.width).init(device),
            attention: MultiHeadAttentionConfig::new(self.width, self.heads)
                .with_dropout(self.dropout)
                .init(device),
            norm_2: LayerNormConfig::new(self.width).init(device),
            up: LinearConfig::new(self.width, 4 * self.width).init(device),
            activation: Gelu::new(),
            down: LinearConfig::new(4 * self.width, self.width).init(device),
            dropout: DropoutConfig::new(self.dropout).init(),
        }
    }
}

impl Gpt {
    /// Returns the scores of every next token: from `[batch, length]` to `[batch, length, vocabulary]`.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [batch, length] = tokens.dims();
        let device = tokens.device();
        let positions = Tensor::<1, Int>::arange(0..length as i64, &device).unsqueeze::<2>();
        let mask = generate_autoregressive_mask(batch, length, &device);
        let x = self.tokens.forward(tokens) + self.positions.forward(positions);
        let mut x = self.dropout.forward(x);
        for block in &self.blocks {
            x = block.forward(x, mask.clone());
        }
        self.head.forward(self.norm.forward(x))
    }

    /// Returns the mean cross entropy of the targets, `[batch, length]`, in nats, and the scores. The cross
    /// entropy is computed in f32, whatever the type of the model.
    pub fn loss(&self, tokens: Tensor<2, Int>, targets: Tensor<2, Int>) -> (Tensor<1>, Tensor<3>) {
        let logits = self.forward(tokens);
        let [batch, length, vocabulary] = logits.dims();
        let loss = CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(
                logits
                    .clone()
                    .cast(DType::F32)
                    .reshape([batch * length, vocabulary]),
                targets.reshape([batch * length]),
            );
        (loss, logits)
    }
}

impl Block {
    fn forward(&self, x: Tensor<3>, mask: Tensor<3, Bool>) -> Tensor<3> {
        let input = MhaInput::self_attn(self.norm_1.forward(x.clone())).mask_attn(mask);
        let x = x + self.dropout.forward(self.attention.forward(input).context);
        let hidden = self
            .activation
            .forward(self.up.forward(self.norm_2.forward(x.clone())));
        x + self.dropout.forward(self.down.forward(hidden))
    }
}
