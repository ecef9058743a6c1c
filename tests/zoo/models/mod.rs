//! Models as Burn's users write them, in small sizes.

pub mod images;
mod other;
mod patches;
mod recurrent;
mod texts;

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use tinderbox::{Batch, Outputs};

use crate::split::Split;

/// The number of samples of every batch.
pub const SAMPLES: usize = 8;

/// A model with batches to train it on.
pub struct Entry<M, B> {
    pub init: fn(&Device) -> M,
    pub forward: fn(&M, B) -> Outputs,
    pub batch: fn(u64, &Device) -> B,
    /// The number of items of a batch that its loss is a mean over; without it, the samples.
    pub count: Option<fn(&B) -> f64>,
}

impl<M, B> Clone for Entry<M, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M, B> Copy for Entry<M, B> {}

/// What is done with every model.
pub trait Visit {
    fn visit<M: Module + Sync + 'static, B: Batch + Split>(&mut self, entry: Entry<M, B>);
}

macro_rules! zoo {
    ($($name:ident: $entry:expr,)*) => {
        /// The names of all models.
        #[allow(dead_code, reason = "the benchmark lists them, the tests name them")]
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// Visits the model of a name.
        pub fn visit(name: &str, visitor: &mut impl Visit) {
            match name {
                $(stringify!($name) => visitor.visit($entry),)*
                _ => panic!("no model has the name {name}"),
            }
        }
    };
}

zoo! {
    mnist: images::MNIST,
    resnet_18: images::RESNET_18,
    mobilenet: images::MOBILENET,
    unet: images::UNET,
    vision_transformer: patches::VISION_TRANSFORMER,
    mlp_mixer: patches::MLP_MIXER,
    clip: patches::CLIP,
    text_classification: texts::CLASSIFICATION,
    text_generation: texts::GENERATION,
    bert: texts::BERT,
    llama: texts::LLAMA,
    encoder_decoder: texts::ENCODER_DECODER,
    lstm: recurrent::LSTM,
    gru: recurrent::GRU,
    experts: other::EXPERTS,
    variants: other::VARIANTS,
    lora: other::LORA,
    constants: other::CONSTANTS,
}

/// Pseudorandom numbers between -1 and 1, the same on every machine.
pub fn noise(count: usize, number: u64) -> Vec<f32> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((state >> 40) as f32 / (1u64 << 24) as f32) * 2.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

pub fn floats<const D: usize>(shape: [usize; D], number: u64, device: &Device) -> Tensor<D> {
    let values = noise(shape.iter().product(), number);
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Numbers from 0 on, all less than `below`.
pub fn tokens<const D: usize>(
    shape: [usize; D],
    below: usize,
    number: u64,
    device: &Device,
) -> Tensor<D, Int> {
    let values = noise(shape.iter().product(), number).into_iter();
    let token = |x: f32| (((x + 1.0) / 2.0 * below as f32) as i32).min(below as i32 - 1);
    let values: Vec<i32> = values.map(token).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// The mean cross entropy of logits and classes.
pub fn cross_entropy(logits: Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    let loss = burn::nn::loss::CrossEntropyLossConfig::new();
    loss.init(&logits.device()).forward(logits, classes)
}
