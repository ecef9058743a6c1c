//! The same training in plain Burn on one device: compares the gradients of the first step, and the losses of
//! all steps.

use anyhow::Result;
use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::Device;
use tinderbox::{
    Deferred, Outputs, Plan, Trace, Verification, VerifyOptions, random::Seed, split_batch,
    verify_with,
};

use crate::data::{Text, TokenBatch};
use crate::flags::Flags;
use crate::model::Gpt;
use crate::report::Progress;
use crate::report::say;
use crate::{LENGTH, SAMPLES, learning_rate};

/// Compares the loss and every gradient of the first step.
pub fn first_step(
    model: &Deferred<Gpt>,
    trace: &Trace<TokenBatch>,
    plan: &Plan,
    batch: TokenBatch,
    forward: impl Fn(&Gpt, TokenBatch) -> Outputs,
    (flags, device): (&Flags, &Device),
) -> Result<Verification> {
    let options = VerifyOptions::new()
        .seed(flags.seed)
        .micro_batches(flags.micro_batches)
        .device(device);
    Ok(verify_with(model, trace, plan, batch, forward, &options)?)
}

/// Trains with Burn's autodiff, from the same initial values, with the same batches and gradient
/// accumulation, and returns the maximum difference to the pipeline's losses.
pub fn largest_difference(
    model: &Deferred<Gpt>,
    text: &Text,
    flags: &Flags,
    device: &Device,
    losses: &[Vec<f64>],
) -> Result<f64> {
    let device = device.clone().autodiff();
    let mut module = model.materialize(&device, &model.replay(Seed::new(flags.seed)))?;
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
