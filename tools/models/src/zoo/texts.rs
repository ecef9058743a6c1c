//! Transformers over texts.

use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{
    Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig, RotaryEncoding,
    RotaryEncodingConfig,
};
use burn::tensor::activation::{silu, softmax};
use burn::tensor::{Bool, Device, Int, Tensor};
use tinderbox::Outputs;

use super::entry::{Entry, SAMPLES, cross_entropy};
use crate::encoder_decoder::{EncoderDecoder, EncoderDecoderConfig};
use crate::minilm::{Bert, BertConfig};
use crate::values::tokens;

const WORDS: usize = 13;
const LENGTH: usize = 6;
const WIDTH: usize = 12;
const CLASSES: usize = 3;
/// The padding token.
const PAD: usize = 0;

fn encoder(device: &Device) -> TransformerEncoder {
    TransformerEncoderConfig::new(WIDTH, 2 * WIDTH, 3, 3)
        .with_dropout(0.0)
        .with_norm_first(true)
        .with_quiet_softmax(true)
        .init(device)
}

/// Returns texts of different lengths, and a mask of their padding.
fn padded(number: u64, device: &Device) -> (Tensor<2, Int>, Tensor<2, Bool>) {
    let words = tokens([SAMPLES, LENGTH], WORDS - 1, number, device) + 1;
    let lengths = tokens([SAMPLES, 1], LENGTH - 1, number + 500, device) + 1;
    let positions = Tensor::<1, Int>::arange(0..LENGTH as i64, device).unsqueeze::<2>();
    let padding = positions.greater_equal(lengths);
    (words.mask_fill(padding.clone(), PAD as i64), padding)
}

/// The model of Burn's example `text-classification`, which moves its inputs to the device of the model.
#[derive(Module, Debug)]
pub struct TextClassification {
    transformer: TransformerEncoder,
    embedding_token: Embedding,
    embedding_pos: Embedding,
    output: Linear,
    n_classes: usize,
}

type LabeledTexts = (Tensor<2, Int>, Tensor<2, Bool>, Tensor<1, Int>);

impl TextClassification {
    fn forward(&self, (tokens, mask_pad, labels): LabeledTexts) -> Outputs {
        let [batch_size, seq_length] = tokens.dims();
        let device = &self.embedding_token.devices()[0];
        let tokens = tokens.to_device(device);
        let labels = labels.to_device(device);
        let mask_pad = mask_pad.to_device(device);
        let index_positions = Tensor::arange(0..seq_length as i64, device)
            .reshape([1, seq_length])
            .repeat_dim(0, batch_size);
        let embedding_positions = self.embedding_pos.forward(index_positions);
        let embedding_tokens = self.embedding_token.forward(tokens);
        let embedding = (embedding_positions + embedding_tokens) / 2;
        let input = TransformerEncoderInput::new(embedding).mask_pad(mask_pad);
        let output = self.output.forward(self.transformer.forward(input));
        let logits = output
            .slice([0..batch_size, 0..1])
            .reshape([batch_size, self.n_classes]);
        Outputs::loss(cross_entropy(logits.clone(), labels)).with("logits", logits)
    }
}

pub const CLASSIFICATION: Entry<TextClassification, LabeledTexts> = Entry {
    init: |device| TextClassification {
        transformer: encoder(device),
        embedding_token: EmbeddingConfig::new(WORDS, WIDTH).init(device),
        embedding_pos: EmbeddingConfig::new(LENGTH, WIDTH).init(device),
        output: LinearConfig::new(WIDTH, CLASSES).init(device),
        n_classes: CLASSES,
    },
    forward: TextClassification::forward,
    batch: |number, device| {
        let (words, padding) = padded(number, device);
        let labels = tokens([SAMPLES], CLASSES, number + 1000, device);
        (words, padding, labels)
    },
    count: None,
};

/// The model of Burn's example `text-generation`, with a loss over the words that are not padding.
#[derive(Module, Debug)]
pub struct TextGeneration {
    transformer: TransformerEncoder,
    embedding_token: Embedding,
    embedding_pos: Embedding,
    output: Linear,
    vocab_size: usize,
    pad_token: usize,
}

type PaddedTexts = (Tensor<2, Int>, Tensor<2, Int>, Tensor<2, Bool>);

impl TextGeneration {
    fn forward(&self, (inputs, targets, mask_pad): PaddedTexts) -> Outputs {
        let [batch_size, seq_length] = inputs.dims();
        let device = &self.devices()[0];
        let inputs = inputs.to_device(device);
        let targets = targets.to_device(device);
        let mask_pad = mask_pad.to_device(device);
        let index_positions = Tensor::arange(0..seq_length as i64, device)
            .reshape([1, seq_length])
            .repeat_dim(0, batch_size);
        let embedding_positions = self.embedding_pos.forward(index_positions);
        let embedding_tokens = self.embedding_token.forward(inputs);
        let embedding = (embedding_positions + embedding_tokens) / 2;
        let mask_attn = generate_autoregressive_mask(batch_size, seq_length, device);
        let input = TransformerEncoderInput::new(embedding)
            .mask_pad(mask_pad)
            .mask_attn(mask_attn);
        let output = self.output.forward(self.transformer.forward(input));
        let logits = output.reshape([batch_size * seq_length, self.vocab_size]);
        let targets = targets.reshape([batch_size * seq_length]);
        let loss = CrossEntropyLossConfig::new()
            .with_pad_tokens(Some(vec![self.pad_token]))
            .init(&logits.device());
        let count = targets
            .clone()
            .not_equal_elem(self.pad_token as i64)
            .int()
            .sum();
        Outputs::loss(loss.forward(logits, targets)).weighted_by(count)
    }
}

pub const GENERATION: Entry<TextGeneration, PaddedTexts> = Entry {
    init: |device| TextGeneration {
        transformer: encoder(device),
        embedding_token: EmbeddingConfig::new(WORDS, WIDTH).init(device),
        embedding_pos: EmbeddingConfig::new(LENGTH, WIDTH).init(device),
        output: LinearConfig::new(WIDTH, WORDS).init(device),
        vocab_size: WORDS,
        pad_token: PAD,
    },
    forward: TextGeneration::forward,
    batch: |number, device| {
        let (inputs, padding) = padded(number, device);
        let targets = tokens([SAMPLES, LENGTH], WORDS - 1, number + 1000, device) + 1;
        let targets = targets.mask_fill(padding.clone(), PAD as i64);
        (inputs, targets, padding)
    },
    count: Some(|(_, targets, _)| {
        let counted = targets.clone().not_equal_elem(PAD as i64).int().sum();
        f64::from(counted.into_scalar::<i32>())
    }),
};

pub const BERT: Entry<Bert, LabeledTexts> = Entry {
    init: |device| {
        let config = BertConfig::new(WORDS, WIDTH, 3, 3, 2 * WIDTH);
        config.with_max_position_embeddings(LENGTH).init(device)
    },
    forward: |model, (words, padding, labels)| {
        let embedded = model.embed(words, padding);
        Outputs::loss(cross_entropy(embedded.clone(), labels)).with("embedded", embedded)
    },
    batch: CLASSIFICATION.batch,
    count: None,
};

/// Decoder layers with rotary encoding, grouped heads of keys and values, and gated feed-forward networks.
#[derive(Module, Debug)]
pub struct Llama {
    tokens: Embedding,
    rotary: RotaryEncoding,
    layers: Vec<DecoderLayer>,
    norm: RmsNorm,
    head: Linear,
}

#[derive(Module, Debug)]
struct DecoderLayer {
    attention_norm: RmsNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    feed_forward_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
    heads: usize,
    kv_heads: usize,
}

fn unbiased(from: usize, to: usize, device: &Device) -> Linear {
    LinearConfig::new(from, to).with_bias(false).init(device)
}

impl DecoderLayer {
    fn new(device: &Device) -> Self {
        let norm = || RmsNormConfig::new(WIDTH).init(device);
        Self {
            attention_norm: norm(),
            query: unbiased(WIDTH, WIDTH, device),
            key: unbiased(WIDTH, WIDTH / 3, device),
            value: unbiased(WIDTH, WIDTH / 3, device),
            output: unbiased(WIDTH, WIDTH, device),
            feed_forward_norm: norm(),
            gate: unbiased(WIDTH, 2 * WIDTH, device),
            up: unbiased(WIDTH, 2 * WIDTH, device),
            down: unbiased(2 * WIDTH, WIDTH, device),
            heads: 3,
            kv_heads: 1,
        }
    }

    fn attention(&self, x: Tensor<3>, rotary: &RotaryEncoding) -> Tensor<3> {
        let [batch, length, width] = x.dims();
        let size = width / self.heads;
        let heads = |linear: &Linear, count| -> Tensor<4> {
            let x = linear.forward(x.clone());
            x.reshape([batch, length, count, size]).swap_dims(1, 2)
        };
        let repeated = |x: Tensor<4>| x.repeat_dim(1, self.heads / self.kv_heads);
        let query = rotary.forward(heads(&self.query, self.heads));
        let key = repeated(rotary.forward(heads(&self.key, self.kv_heads)));
        let value = repeated(heads(&self.value, self.kv_heads));
        let scores = query.matmul(key.transpose()) / (size as f64).sqrt();
        let hidden = Tensor::<2, Bool>::tril_mask([length, length], 0, &x.device());
        let scores = scores.mask_fill(hidden.unsqueeze::<4>(), f32::NEG_INFINITY);
        let x = softmax(scores, 3).matmul(value).swap_dims(1, 2);
        self.output.forward(x.reshape([batch, length, width]))
    }

    fn forward(&self, x: Tensor<3>, rotary: &RotaryEncoding) -> Tensor<3> {
        let attended = self.attention(self.attention_norm.forward(x.clone()), rotary);
        let x = x + attended;
        let hidden = self.feed_forward_norm.forward(x.clone());
        let gated = silu(self.gate.forward(hidden.clone())) * self.up.forward(hidden);
        x + self.down.forward(gated)
    }
}

pub const LLAMA: Entry<Llama, (Tensor<2, Int>, Tensor<2, Int>)> = Entry {
    init: |device| Llama {
        tokens: EmbeddingConfig::new(WORDS, WIDTH).init(device),
        rotary: RotaryEncodingConfig::new(2 * LENGTH, WIDTH / 3).init(device),
        layers: (0..3).map(|_| DecoderLayer::new(device)).collect(),
        norm: RmsNormConfig::new(WIDTH).init(device),
        head: unbiased(WIDTH, WORDS, device),
    },
    forward: |model, (words, expected)| {
        let x = model.tokens.forward(words);
        let layers = model.layers.iter();
        let x = layers.fold(x, |x, layer| layer.forward(x, &model.rotary));
        let logits = model.head.forward(model.norm.forward(x));
        Outputs::loss(cross_entropy(logits.flatten(0, 1), expected.flatten(0, 1)))
    },
    batch: |number, device| {
        let words = |number| tokens([SAMPLES, LENGTH], WORDS, number, device);
        (words(number), words(number + 1000))
    },
    count: None,
};

type Translations = ((Tensor<2, Int>, Tensor<2, Int>), Tensor<2, Int>);

/// An encoder-decoder whose encoder, decoder and head share one embedding.
pub const ENCODER_DECODER: Entry<EncoderDecoder, Translations> = Entry {
    init: |device| EncoderDecoderConfig::new(WORDS, WIDTH, 3).init(device),
    forward: |model, ((source, target), expected)| {
        let logits = model.forward(source, target);
        Outputs::loss(model.loss(logits.clone(), expected)).with("logits", logits)
    },
    batch: |number, device| {
        let words = |number| tokens([SAMPLES, LENGTH], WORDS, number, device);
        ((words(number), words(number + 500)), words(number + 1000))
    },
    count: None,
};
