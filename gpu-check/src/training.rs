//! Trains a language model in two stages on one device, compared with plain Burn.

use std::time::Instant;

use anyhow::Result;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use tinderbox::random::Seed;
use tinderbox::{
    Deferred, Machine, MaterializeOptions, MixedPrecision, Outputs, Pipeline, Plan, Traceable,
    split_batch,
};

use crate::bench::{Bench, settle};
use crate::gpt::{Gpt, GptConfig};
use crate::report::Part;
use crate::size::Training;

const LR: f64 = 3e-4;
const STAGES: usize = 2;
/// Steps before those that are measured, for the compilation and selection of kernels.
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
    let in_bf16 = bench.size.computes_bf16 && bench.device.supports_dtype(FloatDType::BF16);
    let compute = if in_bf16 { DType::BF16 } else { DType::F32 };

    let example = batch(&size, size.samples / size.micro_batches, &Device::flex());
    let forward = |net: &Gpt, (tokens, targets): Batch| Outputs::loss(net.loss(tokens, targets).0);
    let trace = match in_bf16 {
        true => MixedPrecision::bf16(&model).trace(&example, forward),
        false => model.trace(&example, forward),
    }?;
    let plan = Plan::auto(&trace, &Machine::local(STAGES)?)?;
    let mut pipeline = Pipeline::new(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .micro_batches(size.micro_batches)
        .device(&bench.device)
        .start()?;
    let device = bench.device.clone().autodiff();
    let options = MaterializeOptions::default().dtype(|_| Some(compute));
    let module = model.materialize_with(&device, &model.replay(Seed::new(0)), options)?;
    let mut plain = Plain {
        module: Some(module),
        optimizer: AdamWConfig::new().init(),
        size,
    };

    let mut seconds = [Vec::new(), Vec::new()];
    let mut losses = [Vec::new(), Vec::new()];
    for step in 0..WARM_UP + size.steps {
        let data = batch(&size, size.samples, &Device::flex());
        bench.device.sync()?;
        let begun = Instant::now();
        let loss = pipeline.step(LR, data)?.loss;
        settle(&mut pipeline)?;
        let of_pipeline = begun.elapsed().as_secs_f64();
        let data = batch(&size, size.samples, &device);
        let begun = Instant::now();
        let plain_loss = plain.step(data)?;
        bench.device.sync()?;
        let of_plain = begun.elapsed().as_secs_f64();
        losses[0].push(loss);
        losses[1].push(plain_loss);
        if step >= WARM_UP {
            seconds[0].push(of_pipeline);
            seconds[1].push(of_plain);
        }
    }
    let tokens = (size.samples * size.length) as f64;
    let medians = seconds.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    let [pipeline, plain] = medians;
    part.figure("training.pipeline", tokens / pipeline, "tokens/s");
    part.figure("training.plain_burn", tokens / plain, "tokens/s");
    part.figure("training.overhead", 100.0 * (pipeline / plain - 1.0), "%");
    for (name, losses) in ["the pipeline", "plain Burn"].iter().zip(&losses) {
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        let asked = format!("the loss of {name} falls");
        part.check(asked, format!("{first:.4} to {last:.4}"), last < first);
    }
    let apart = (losses[0][0] - losses[1][0]).abs();
    let asked = "the first loss of both is the same within 1 %";
    part.check(
        asked,
        format!("{apart:.5} apart"),
        apart <= 0.01 * losses[1][0].abs(),
    );
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

/// Plain Burn's training.
struct Plain {
    module: Option<Gpt>,
    optimizer: ModuleOptimizer,
    size: Training,
}

impl Plain {
    fn step(&mut self, data: Batch) -> Result<f64> {
        let mut module = self.module.take().expect("the module is restored below");
        let mut accumulator = GradientsAccumulator::new();
        let mut losses = Vec::new();
        for ((tokens, targets), samples) in split_batch(&data, self.size.micro_batches)? {
            let share = samples as f32 / self.size.samples as f32;
            let loss = module.loss(tokens, targets).0.mul_scalar(share);
            losses.push(loss.clone());
            let gradients = GradientsParams::from_grads(loss.backward(), &module);
            accumulator.accumulate(&module, gradients);
        }
        module = self.optimizer.step(LR, module, accumulator.grads());
        self.module = Some(module);
        // Read at the end, as in the pipeline, because a read in between waits for the device.
        let losses = losses
            .into_iter()
            .map(|loss| f64::from(loss.into_scalar::<f32>()));
        Ok(losses.sum())
    }
}
