//! Text from a trained model.

use burn::tensor::activation::softmax;
use burn::tensor::{Int, Tensor, TensorData};

use crate::data::{Text, scramble};
use crate::model::Gpt;

/// Continues a text by `count` characters, each drawn from the model's probabilities.
pub fn generate(
    model: &Gpt,
    text: &Text,
    prompt: &str,
    count: usize,
    context: usize,
    seed: u64,
) -> String {
    const TEMPERATURE: f32 = 0.8;
    let device = burn::tensor::Device::flex();
    let mut tokens = text.encode(prompt);
    for index in 0..count as u64 {
        let seen = tokens[tokens.len().saturating_sub(context)..].to_vec();
        let length = seen.len();
        let input = Tensor::<2, Int>::from_data(TensorData::new(seen, [1, length]), &device);
        let last = model
            .forward(input)
            .slice([0..1, length - 1..length])
            .flatten::<1>(0, 2);
        let probabilities: Vec<f32> = softmax(last / TEMPERATURE, 0).into_data().iter().collect();
        let mut left = (scramble(seed ^ scramble(index)) >> 40) as f32 / (1u64 << 24) as f32;
        let chosen = probabilities.iter().position(|p| {
            left -= p;
            left < 0.0
        });
        tokens.push(chosen.unwrap_or(probabilities.len() - 1) as i32);
    }
    text.decode(&tokens)
}
