//! Text from a trained model.

use anyhow::{Result, ensure};
use burn::module::Module;
use burn::tensor::activation::softmax;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use tinderbox::fake::is_host;
use tinderbox_models::language_model::Gpt;
use tinderbox_models::text::{Text, scramble};

use crate::flags::Precision;
use crate::settings::Lm;

/// Continues a text by `count` characters, each drawn from the predicted probabilities of the pipeline.
pub fn generate(
    pipeline: &mut Lm,
    text: &Text,
    prompt: &str,
    count: usize,
    context: usize,
    seed: u64,
) -> Result<String> {
    const TEMPERATURE: f32 = 0.8;
    let mut tokens = text.encode(prompt);
    for index in 0..count as u64 {
        let last = next_scores(pipeline, &tokens, context)?;
        let probabilities: Vec<f32> = softmax(last / TEMPERATURE, 0).into_data().iter().collect();
        let mut left = (scramble(seed ^ scramble(index)) >> 40) as f32 / (1u64 << 24) as f32;
        let chosen = probabilities.iter().position(|p| {
            left -= p;
            left < 0.0
        });
        tokens.push(chosen.unwrap_or(probabilities.len() - 1) as i32);
    }
    Ok(text.decode(&tokens))
}

/// Returns the largest permitted difference between the scores of the gathered model, which computes in f32, and
/// the scores of the pipeline. It is zero on the CPU. On GPUs it allows for the rounding of different kernels, and
/// in 16-bit precision for 16-bit rounding.
pub fn bound(device: &Device, precision: Precision) -> f32 {
    match precision {
        Precision::F32 if is_host(device) => 0.0,
        Precision::F32 => 1e-3,
        Precision::F16 => 0.05,
        Precision::Bf16 => 0.5,
    }
}

/// Checks that the gathered model computes the same scores as the pipeline.
pub fn check(
    model: &Gpt,
    pipeline: &mut Lm,
    text: &Text,
    sampled: &str,
    context: usize,
    bound: f32,
) -> Result<()> {
    let tokens = text.encode(sampled);
    let (input, length) = window(&tokens, context);
    let device = model.devices().pop().expect("the model has parameters");
    let gathered = scores_at(model.forward(input.to_device(&device)), length).into_data();
    let piped = next_scores(pipeline, &tokens, context)?.into_data();
    let pairs = gathered.iter::<f32>().zip(piped.iter::<f32>());
    let apart = pairs.map(|(one, other)| (one - other).abs());
    // NaN differs from every other score.
    let worst = apart.max_by(f32::total_cmp).unwrap_or(f32::NAN);
    ensure!(
        gathered.shape() == piped.shape() && worst <= bound,
        "the scores of the gathered model differ from the scores of the pipeline by up to {worst}"
    );
    Ok(())
}

/// Returns the scores of the next token. The window is padded at the end, so that one traced program serves
/// every length. The causal mask hides the padding.
fn next_scores(pipeline: &mut Lm, tokens: &[i32], context: usize) -> Result<Tensor<1>> {
    let (input, length) = window(tokens, context);
    let output = pipeline.evaluate((input.clone(), input))?;
    let logits = output
        .output("logits")
        .expect("the forward names its logits");
    let logits = logits[0].clone().typed::<3, burn::tensor::Float>()?;
    Ok(scores_at(logits, length))
}

/// Returns the last tokens that fit the context, and their number.
fn window(tokens: &[i32], context: usize) -> (Tensor<2, Int>, usize) {
    let mut seen = tokens[tokens.len().saturating_sub(context)..].to_vec();
    let length = seen.len();
    seen.resize(context, 0);
    let data = TensorData::new(seen, [1, context]);
    (Tensor::from_data(data, &Device::flex()), length)
}

fn scores_at(logits: Tensor<3>, length: usize) -> Tensor<1> {
    let last = logits.slice([0..1, length - 1..length]);
    last.flatten::<1>(0, 2).cast(DType::F32)
}
