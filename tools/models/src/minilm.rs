//! BERT as a sentence encoder, written for plain Burn: it does not depend on Tinderbox.
//!
//! Parameters have the names of Hugging Face's files, except for these differences:
//!
//! | here | Hugging Face |
//! |---|---|
//! | `.self_attention.` | `.self.` (a keyword of Rust) |
//! | `.layer_norm.gamma`, `.layer_norm.beta` | `.LayerNorm.weight`, `.LayerNorm.bias` |
//!
//! The weight of a `Linear` is `[input, output]` here and `[output, input]` in the files; embeddings have the
//! same layout.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{
    Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Device, Int, Tensor};

/// The score of a padded position: its attention weight is exactly 0 after the softmax, because `exp(-1e4)`
/// is 0 in single precision. It is finite, as in Burn's own attention, so that a sequence of only padding
/// does not produce NaN.
const MASKED_SCORE: f64 = -1.0e4;

/// Minimum number of tokens that a sum is divided by, as in sentence-transformers: a sequence of only padding
/// results in zeros, not NaN.
const MIN_TOKENS: f64 = 1e-9;

/// Minimum length that a vector is divided by, as in PyTorch's `normalize`.
const MIN_NORM: f64 = 1e-12;

/// Sizes of the model. The fields are named as in Hugging Face's `config.json`, which `BertConfig::load`
/// reads, ignoring all others.
#[derive(Config, Debug)]
pub struct BertConfig {
    /// Number of different tokens.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Attention heads of each layer; they divide the width.
    pub num_attention_heads: usize,
    /// Width between the two projections of a feed-forward network.
    pub intermediate_size: usize,
    /// Longest sequence.
    #[config(default = 512)]
    pub max_position_embeddings: usize,
    /// Number of different segments of a sequence.
    #[config(default = 2)]
    pub type_vocab_size: usize,
    /// Added to a variance before its square root.
    #[config(default = 1e-12)]
    pub layer_norm_eps: f64,
}

/// A bidirectional transformer, without the pooler.
#[derive(Module, Debug)]
pub struct Bert {
    embeddings: Embeddings,
    encoder: Encoder,
}

/// The sum of three embeddings of each token, normalized.
#[derive(Module, Debug)]
pub struct Embeddings {
    word_embeddings: Embedding,
    position_embeddings: Embedding,
    token_type_embeddings: Embedding,
    layer_norm: LayerNorm,
}

/// The layers, one after the other.
#[derive(Module, Debug)]
pub struct Encoder {
    layer: Vec<Layer>,
}

/// Attention and a feed-forward network, each with a residual connection and followed by a norm.
#[derive(Module, Debug)]
pub struct Layer {
    attention: Attention,
    intermediate: Intermediate,
    output: Output,
}

/// Self-attention and its output projection.
#[derive(Module, Debug)]
pub struct Attention {
    self_attention: SelfAttention,
    output: Output,
}

/// Scaled dot-product attention with several heads, each on its own slice of the width.
#[derive(Module, Debug)]
pub struct SelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    heads: usize,
}

/// The first half of a feed-forward network.
#[derive(Module, Debug)]
pub struct Intermediate {
    dense: Linear,
    activation: Gelu,
}

/// A projection that is added to the residual stream, and the norm of the sum.
#[derive(Module, Debug)]
pub struct Output {
    dense: Linear,
    layer_norm: LayerNorm,
}

impl BertConfig {
    /// Initializes a model.
    pub fn init(&self, device: &Device) -> Bert {
        Bert {
            embeddings: self.init_embeddings(device),
            encoder: Encoder {
                layer: (0..self.num_hidden_layers)
                    .map(|_| self.init_layer(device))
                    .collect(),
            },
        }
    }

    fn init_embeddings(&self, device: &Device) -> Embeddings {
        let embedding = |count| EmbeddingConfig::new(count, self.hidden_size).init(device);
        Embeddings {
            word_embeddings: embedding(self.vocab_size),
            position_embeddings: embedding(self.max_position_embeddings),
            token_type_embeddings: embedding(self.type_vocab_size),
            layer_norm: self.init_norm(device),
        }
    }

    fn init_layer(&self, device: &Device) -> Layer {
        let width = self.hidden_size;
        let linear = |input, output| LinearConfig::new(input, output).init(device);
        Layer {
            attention: Attention {
                self_attention: SelfAttention {
                    query: linear(width, width),
                    key: linear(width, width),
                    value: linear(width, width),
                    heads: self.num_attention_heads,
                },
                output: Output {
                    dense: linear(width, width),
                    layer_norm: self.init_norm(device),
                },
            },
            intermediate: Intermediate {
                dense: linear(width, self.intermediate_size),
                activation: Gelu::new(),
            },
            output: Output {
                dense: linear(self.intermediate_size, width),
                layer_norm: self.init_norm(device),
            },
        }
    }

    fn init_norm(&self, device: &Device) -> LayerNorm {
        LayerNormConfig::new(self.hidden_size)
            .with_epsilon(self.layer_norm_eps)
            .init(device)
    }
}

impl Bert {
    /// Returns the last hidden state: from `[batch, length]` to `[batch, length, width]`.
    ///
    /// `padding`, `[batch, length]`, is true at padded positions, as returned by
    /// [`generate_padding_mask`](burn::nn::attention::generate_padding_mask): the opposite of Hugging Face's
    /// attention mask. Values at padded positions are unspecified. All tokens are in segment 0.
    ///
    /// # Panics
    ///
    /// Panics if a sequence is longer than `max_position_embeddings`, or a token is not in the vocabulary, on
    /// devices that check indices.
    pub fn forward(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Tensor<3> {
        let [batch, length] = padding.dims();
        // The same for all heads and for all query positions.
        let padding: Tensor<4, Bool> = padding.reshape([batch, 1, 1, length]);
        let mut x = self.embeddings.forward(tokens);
        for layer in &self.encoder.layer {
            x = layer.forward(x, padding.clone());
        }
        x
    }

    /// Returns one vector of length 1 per sequence, `[batch, width]`: the normalized mean over its tokens,
    /// including the first and the last. The scalar product of two of them is their cosine similarity.
    ///
    /// For the arguments see [`forward`](Self::forward).
    pub fn embed(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Tensor<2> {
        let hidden = self.forward(tokens, padding.clone());
        normalize(mean_of_tokens(hidden, padding))
    }
}

impl Embeddings {
    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [_, length] = tokens.dims();
        let device = tokens.device();
        let positions = Tensor::<1, Int>::arange(0..length as i64, &device).unsqueeze::<2>();
        let segments = tokens.zeros_like();
        // In the order of the original, because sums of floats depend on it.
        let x = self.word_embeddings.forward(tokens)
            + self.token_type_embeddings.forward(segments)
            + self.position_embeddings.forward(positions);
        self.layer_norm.forward(x)
    }
}

impl Layer {
    fn forward(&self, x: Tensor<3>, padding: Tensor<4, Bool>) -> Tensor<3> {
        let x = self.attention.forward(x, padding);
        let hidden = self.intermediate.forward(x.clone());
        self.output.forward(hidden, x)
    }
}

impl Attention {
    fn forward(&self, x: Tensor<3>, padding: Tensor<4, Bool>) -> Tensor<3> {
        let context = self.self_attention.forward(x.clone(), padding);
        self.output.forward(context, x)
    }
}

impl SelfAttention {
    fn forward(&self, x: Tensor<3>, padding: Tensor<4, Bool>) -> Tensor<3> {
        let [batch, length, width] = x.dims();
        let size = width / self.heads;
        let heads = |linear: &Linear| -> Tensor<4> {
            linear
                .forward(x.clone())
                .reshape([batch, length, self.heads, size])
                .swap_dims(1, 2)
        };
        let scores = heads(&self.query).matmul(heads(&self.key).transpose());
        let scores = scores.div_scalar((size as f64).sqrt());
        let weights = softmax(scores.mask_fill(padding, MASKED_SCORE), 3);
        weights
            .matmul(heads(&self.value))
            .swap_dims(1, 2)
            .reshape([batch, length, width])
    }
}

impl Intermediate {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.activation.forward(self.dense.forward(x))
    }
}

impl Output {
    fn forward(&self, x: Tensor<3>, residual: Tensor<3>) -> Tensor<3> {
        self.layer_norm.forward(self.dense.forward(x) + residual)
    }
}

/// Returns the mean over all positions that are not padding: from `[batch, length, width]` to `[batch,
/// width]`.
fn mean_of_tokens(hidden: Tensor<3>, padding: Tensor<2, Bool>) -> Tensor<2> {
    let weights = padding.bool_not().float().unsqueeze_dim::<3>(2);
    let sum = (hidden * weights.clone()).sum_dim(1);
    let count = weights.sum_dim(1).clamp_min(MIN_TOKENS);
    (sum / count).squeeze_dim::<2>(1)
}

/// Divides each row by its length.
fn normalize(rows: Tensor<2>) -> Tensor<2> {
    let norm = rows.clone().square().sum_dim(1).sqrt();
    rows / norm.clamp_min(MIN_NORM)
}
