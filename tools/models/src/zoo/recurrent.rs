//! Recurrent networks, unrolled over time.

use burn::module::Module;
use burn::nn::gru::{Gru, GruConfig};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, Lstm, LstmConfig};
use burn::tensor::{Device, Int, Tensor};
use tinderbox::Outputs;

use super::entry::{Entry, SAMPLES, cross_entropy};
use crate::values::tokens;

const WORDS: usize = 9;
const WIDTH: usize = 8;
const LENGTH: usize = 6;

type Sequences = (Tensor<2, Int>, Tensor<2, Int>);

fn sequences(number: u64, device: &Device) -> Sequences {
    let of = |number| tokens([SAMPLES, LENGTH], WORDS, number, device);
    (of(number), of(number + 1000))
}

fn next_words(logits: Tensor<3>, expected: Tensor<2, Int>) -> Outputs {
    let logits = logits.flatten::<2>(0, 1);
    Outputs::loss(cross_entropy(logits, expected.flatten(0, 1)))
}

/// Two LSTMs, one after the other.
#[derive(Module, Debug)]
pub struct LstmModel {
    words: Embedding,
    layers: Vec<Lstm>,
    head: Linear,
}

pub const LSTM: Entry<LstmModel, Sequences> = Entry {
    init: |device| LstmModel {
        words: EmbeddingConfig::new(WORDS, WIDTH).init(device),
        layers: (0..2)
            .map(|_| LstmConfig::new(WIDTH, WIDTH, true).init(device))
            .collect(),
        head: LinearConfig::new(WIDTH, WORDS).init(device),
    },
    forward: |model, (words, expected)| {
        let x = model.words.forward(words);
        let layers = model.layers.iter();
        let x = layers.fold(x, |x, layer| layer.forward(x, None).0);
        next_words(model.head.forward(x), expected)
    },
    batch: sequences,
    count: None,
};

/// Two GRUs, one after the other.
#[derive(Module, Debug)]
pub struct GruModel {
    words: Embedding,
    layers: Vec<Gru>,
    head: Linear,
}

pub const GRU: Entry<GruModel, Sequences> = Entry {
    init: |device| GruModel {
        words: EmbeddingConfig::new(WORDS, WIDTH).init(device),
        layers: (0..2)
            .map(|_| GruConfig::new(WIDTH, WIDTH, true).init(device))
            .collect(),
        head: LinearConfig::new(WIDTH, WORDS).init(device),
    },
    forward: |model, (words, expected)| {
        let x = model.words.forward(words);
        let layers = model.layers.iter();
        let x = layers.fold(x, |x, layer| layer.forward(x, None));
        next_words(model.head.forward(x), expected)
    },
    batch: sequences,
    count: None,
};
