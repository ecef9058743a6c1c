//! An encoder, and a decoder that attends to it; both and the head share one embedding.

use burn::config::Config;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{Device, Int, Tensor};

/// Sizes of an [`EncoderDecoder`].
#[derive(Config, Debug)]
pub struct EncoderDecoderConfig {
    /// Number of different words.
    pub vocabulary: usize,
    /// Width of all layers.
    pub width: usize,
    /// Layers of the encoder, and of the decoder.
    pub layers: usize,
}

/// An encoder and a decoder.
#[derive(Module, Debug)]
pub struct EncoderDecoder {
    embedding: Embedding,
    encoder: Vec<Layer>,
    encoder_norm: LayerNorm,
    decoder: Vec<CrossLayer>,
    norm: LayerNorm,
}

#[derive(Module, Debug)]
struct Layer {
    norm: LayerNorm,
    mix: Linear,
}

#[derive(Module, Debug)]
struct CrossLayer {
    norm: LayerNorm,
    mix: Linear,
    query: Linear,
    key: Linear,
    value: Linear,
}

impl EncoderDecoderConfig {
    /// Initializes the model.
    pub fn init(&self, device: &Device) -> EncoderDecoder {
        let norm = || LayerNormConfig::new(self.width).init(device);
        let linear = || LinearConfig::new(self.width, self.width).init(device);
        let layer = |_| Layer {
            norm: norm(),
            mix: linear(),
        };
        let cross_layer = |_| CrossLayer {
            norm: norm(),
            mix: linear(),
            query: linear(),
            key: linear(),
            value: linear(),
        };
        // The head uses the embedding as well: with unit variance its scores would be so far apart that most
        // probabilities underflow to denormal numbers, which are slow to compute with.
        let unit = Initializer::Normal {
            mean: 0.0,
            std: (self.width as f64).sqrt().recip(),
        };
        let embedding = EmbeddingConfig::new(self.vocabulary, self.width);
        EncoderDecoder {
            embedding: embedding.with_initializer(unit).init(device),
            encoder: (0..self.layers).map(layer).collect(),
            encoder_norm: norm(),
            decoder: (0..self.layers).map(cross_layer).collect(),
            norm: norm(),
        }
    }
}

impl Layer {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        x.clone() + gelu(self.mix.forward(self.norm.forward(x)))
    }
}

impl CrossLayer {
    fn forward(&self, x: Tensor<3>, memory: Tensor<3>) -> Tensor<3> {
        let x = x.clone() + gelu(self.mix.forward(self.norm.forward(x)));
        let query = self.query.forward(x.clone());
        let key = self.key.forward(memory.clone());
        let [.., width] = query.dims();
        let scores = query.matmul(key.transpose()) / (width as f64).sqrt();
        x + softmax(scores, 2).matmul(self.value.forward(memory))
    }
}

impl EncoderDecoder {
    /// Returns logits of shape `[batch, length, vocabulary]` for a source and a target of shape `[batch,
    /// length]`.
    pub fn forward(&self, source: Tensor<2, Int>, target: Tensor<2, Int>) -> Tensor<3> {
        let memory = self.embedding.forward(source);
        let memory = self
            .encoder
            .iter()
            .fold(memory, |x, layer| layer.forward(x));
        let memory = self.encoder_norm.forward(memory);
        let x = self.embedding.forward(target);
        let layers = self.decoder.iter();
        let x = layers.fold(x, |x, layer| layer.forward(x, memory.clone()));
        let head = self.embedding.weight.val().transpose().unsqueeze::<3>();
        self.norm.forward(x).matmul(head)
    }

    /// Returns the mean cross entropy of logits and the expected words.
    pub fn loss(&self, logits: Tensor<3>, expected: Tensor<2, Int>) -> Tensor<1> {
        let [batch, length, vocabulary] = logits.dims();
        let loss = CrossEntropyLossConfig::new().init(&logits.device());
        loss.forward(
            logits.reshape([batch * length, vocabulary]),
            expected.reshape([batch * length]),
        )
    }
}
