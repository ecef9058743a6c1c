//! Runs a model of which a fourth may be in the memory of the device, and another fourth in the memory of the host.

use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::{Device, Tensor};
use tinderbox::{
    Deferred, DiskRate, Evaluation, MemoryBudget, Outputs, Pipeline, Plan, Streamed, Traceable,
};

use crate::bench::Bench;
use crate::memory::Layers;
use crate::report::Part;

/// Passes, of which the first reads everything.
const PASSES: usize = 4;
const SEED: u64 = 1;

pub fn run(bench: &Bench, part: &mut Part) -> Result<()> {
    let (width, layers) = (bench.size.memory_width, bench.size.memory_layers);
    let model = Deferred::new(move |device| Layers::new(width, layers, device))?;
    let batch = Tensor::<2>::ones([4, width], &Device::flex());
    let forward = |net: &Layers, x| Outputs::loss(net.loss(x));
    let trace = model.trace_forward(&batch, forward)?;
    let expected = {
        let plan = Plan::manual(&trace, &[])?;
        let pipeline = Pipeline::new(&model, &trace, &plan).seed(SEED);
        let mut pipeline = pipeline.device(&bench.device).start()?;
        bits(&pipeline.evaluate(batch.clone())?)
    };
    bench.device.sync()?;
    bench.device.memory_cleanup();

    let bytes = model.parameters().bytes();
    // Beside the activations, which are small.
    let budget = MemoryBudget::Values(bytes / 4 + (64 << 10));
    let plan = Plan::streamed(&trace, budget)?;
    let mut streamed = Streamed::new(&model, &trace, &plan)
        .seed(SEED)
        .device(&bench.device)
        .memory(budget)
        .host_memory(bytes / 4)
        .start()?;
    let mut found = Vec::new();
    let mut seconds = Vec::new();
    for _ in 0..PASSES {
        let begun = Instant::now();
        found.push(bits(&streamed.evaluate(batch.clone())?));
        seconds.push(begun.elapsed().as_secs_f64());
    }
    let differ = found.iter().filter(|found| **found != expected).count();
    part.check(
        "a pass has the bits of a pipeline that holds everything",
        format!("{differ} of {PASSES} differ"),
        differ == 0,
    );
    let pass = streamed
        .predict(DiskRate::new(1))
        .context("it was traced for evaluation")?;
    part.figure(
        "streamed.read",
        pass.read_bytes as f64 / bytes as f64,
        "of the model",
    );
    seconds.sort_by(f64::total_cmp);
    part.figure("streamed.pass", seconds[PASSES / 2], "s");
    Ok(())
}

fn bits(evaluation: &Evaluation) -> Vec<u64> {
    let losses = evaluation.micro_batch_losses.iter();
    losses.map(|loss| loss.to_bits()).collect()
}
