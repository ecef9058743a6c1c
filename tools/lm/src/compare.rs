//! Trains the same model in plain Burn on one device, and compares the losses of all steps.

use anyhow::Result;
use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::Device;
use tinderbox::Deferred;
use tinderbox::deferred::random::Seed;
use tinderbox::pipeline::split_batch;
use tinderbox_models::language_model::Gpt;
use tinderbox_models::text::Text;

use crate::flags::Flags;
use crate::report::{Progress, say};
use crate::settings::{LENGTH, SAMPLES, learning_rate};

/// Trains with Burn's autodiff and gradient accumulation, from the same initial values and with the same
/// batches. Returns the maximum difference from the losses of the pipeline.
pub fn largest_difference(
    model: &Deferred<Gpt>,
    text: &Text,
    flags: &Flags,
    device: &Device,
    losses: &[Vec<f64>],
) -> Result<f64> {
    let device = device.clone().autodiff();
    let mut module = model.materialize(&device, &model.initializer(Seed::new(flags.seed)))?;
    say!(
        "plain Burn, {} parameters on one device",
        module.num_params()
    );
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.01).init();
    let progress = Progress::start(0, losses.len() as u64, SAMPLES * LENGTH);
    let mut largest: f64 = 0.0;
    for (step, expected) in losses.iter().enumerate() {
        let position = (step * SAMPLES) as u64;
        let batch = text.batch(flags.seed, position, SAMPLES, LENGTH, &device);
        let mut accumulator = GradientsAccumulator::new();
        let mut mean = 0.0;
        for (part, expected) in split_batch(&batch, flags.micro_batches)?
            .into_iter()
            .zip(expected)
        {
            let ((tokens, targets), samples) = part;
            let (loss, _) = module.loss(tokens, targets);
            let found = f64::from(loss.clone().into_scalar::<f32>());
            largest = largest.max((found - expected).abs());
            mean += found * samples as f64 / SAMPLES as f64;
            let weighted = loss.mul_scalar(samples as f32 / SAMPLES as f32);
            let gradients = GradientsParams::from_grads(weighted.backward(), &module);
            accumulator.accumulate(&module, gradients);
        }
        let lr = learning_rate(step as u64, flags.steps);
        module = optimizer.step(lr, module, accumulator.grads());
        progress.step(mean);
    }
    progress.end();
    Ok(largest)
}
