//! Trains a language model in two stages on one device, compared with plain Burn.

use anyhow::{Context, Result};
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use tinderbox::deferred::MaterializeOptions;
use tinderbox::deferred::random::Seed;
use tinderbox::pipeline::split_batch;
use tinderbox::{Deferred, Machine, MixedPrecision, Outputs, Pipeline, Traceable};
use tinderbox_models::language_model::{Gpt, GptConfig};

use crate::bench::{Bench, Training, median, settle, timed};
use crate::report::Part;

const LR: f64 = 3e-4;
const STAGES: usize = 2;
/// Steps before the measured steps, for the compilation and selection of kernels.
const WARM_UP: usize = 3;

type Batch = (Tensor<2, Int>, Tensor<2, Int>);

/// Returns tokens that depend on the previous ones, so that the model can learn; the same at every step.
fn batch(size: &Training, samples: usize, device: &Device) -> Batch {
    let count = size.length + 1;
    let token = |sample: usize, at: usize| {
        let place = (sample * 131 + at) % 256;
        ((place * 37 + 11) % size.vocabulary) as i32
    };
    let of = |shift: usize| {
        let tokens = (0..samples).flat_map(|s| (0..count - 1).map(move |at| token(s, at + shift)));
        let data = TensorData::new(tokens.collect::<Vec<i32>>(), [samples, size.length]);
        Tensor::from_data(data, device)
    };
    (of(0), of(1))
}

pub fn run(bench: &Bench, part: &mut Part) -> Result<()> {
    let size = bench.size.training;
    if size.steps == 0 {
        part.note("Not run: attention and reductions take minutes per step on this runtime.");
        return Ok(());
    }
    let config = GptConfig::new(size.vocabulary)
        .with_context(size.length)
        .with_width(size.width)
        .with_layers(size.layers)
        .with_heads(size.heads)
        .with_dropout(0.0);
    let model = Deferred::new(move |device| config.init(device))?;
    let parameters = model.parameters().bytes() / 4;
    part.figure("training.parameters", parameters as f64 / 1e6, "million");
    let in_bf16 = bench.flags.computes_bf16() && bench.device.supports_dtype(FloatDType::BF16);
    let compute = if in_bf16 { DType::BF16 } else { DType::F32 };

    let (traced, micro_batches) = (
        batch(&size, size.samples, &Device::flex()),
        size.micro_batches,
    );
    let forward = |net: &Gpt, (tokens, targets): Batch| Outputs::loss(net.loss(tokens, targets).0);
    let trace = match in_bf16 {
        true => MixedPrecision::bf16(&model).trace(&traced, micro_batches, forward),
        false => model.trace(&traced, micro_batches, forward),
    }?;
    let plan = trace.plan(&Machine::local(STAGES)?)?;
    let mut pipeline = Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .device(&bench.device)
        .start()?;
    let device = bench.device.clone().autodiff();
    let options = MaterializeOptions::on(&device).dtype(|_| Some(compute));
    let mut module = model.materialize(options, &model.initializer(Seed::new(0)))?;
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();

    let (mut seconds, mut losses) = (Pair::default(), Pair::default());
    for step in 0..WARM_UP + size.steps {
        let data = batch(&size, size.samples, &Device::flex());
        bench.device.sync()?;
        let of_pipeline = timed(|| {
            let loss = pipeline.step(LR, data)?.loss;
            settle(&mut pipeline)?;
            Ok(loss)
        })?;
        let data = batch(&size, size.samples, &device);
        let ((next, loss), took) = timed(|| {
            let stepped = plain_step(module, &mut optimizer, &data, &size)?;
            bench.device.sync()?;
            Ok(stepped)
        })?;
        module = next;
        for (side, (loss, took)) in [of_pipeline, (loss, took)].into_iter().enumerate() {
            losses[side].push(loss);
            seconds[side].extend((step >= WARM_UP).then_some(took));
        }
    }
    let tokens = (size.samples * size.length) as f64;
    compare(part, tokens, seconds, &losses)?;
    part.note(format!(
        "{STAGES} stages on one device, {} micro-batches of {} samples of {} tokens, computed in {}; medians of {} alternating \
         steps. The pipeline has f32 parameters and optimizer state, plain Burn has them in the computation type.",
        size.micro_batches,
        size.samples / size.micro_batches,
        size.length,
        if in_bf16 { "bf16" } else { "f32" },
        size.steps,
    ));
    Ok(())
}

/// A value of the pipeline, and the same value of plain Burn.
type Pair = [Vec<f64>; 2];

/// Compares the times and the losses of the pipeline and of plain Burn.
fn compare(part: &mut Part, tokens: f64, seconds: Pair, losses: &Pair) -> Result<()> {
    let [pipeline, plain] = seconds.map(median);
    let (pipeline, plain) = pipeline.zip(plain).context("there are measured steps")?;
    part.figure("training.pipeline", tokens / pipeline, "tokens/s");
    part.figure("training.plain_burn", tokens / plain, "tokens/s");
    part.figure("training.overhead", 100.0 * (pipeline / plain - 1.0), "%");
    for (name, losses) in ["the pipeline", "plain Burn"].iter().zip(losses) {
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        let asked = format!("the loss of {name} falls");
        part.check(asked, format!("{first:.4} to {last:.4}"), last < first);
    }
    let [first, of_plain] = [0, 1].map(|side| losses[side][0]);
    let (apart, most) = ((first - of_plain).abs(), 0.01 * of_plain.abs());
    let asked = "the first loss of both is the same within 1 %";
    part.check(asked, format!("{apart:.5} apart"), apart <= most);
    Ok(())
}

/// Trains one step in plain Burn; returns the module and the loss.
fn plain_step(
    module: Gpt,
    optimizer: &mut ModuleOptimizer,
    data: &Batch,
    size: &Training,
) -> Result<(Gpt, f64)> {
    let mut accumulator = GradientsAccumulator::new();
    let mut losses = Vec::new();
    for ((tokens, targets), samples) in split_batch(data, size.micro_batches)? {
        let share = samples as f32 / size.samples as f32;
        let loss = module.loss(tokens, targets).0.mul_scalar(share);
        losses.push(loss.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &module);
        accumulator.accumulate(&module, gradients);
    }
    let module = optimizer.step(LR, module, accumulator.grads());
    // Read at the end, as in the pipeline, because a read in between waits for the device.
    let losses = losses.into_iter().map(Tensor::into_scalar::<f32>);
    Ok((module, losses.map(f64::from).sum()))
}
