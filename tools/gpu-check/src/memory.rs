//! Measures the device memory of a model whose stages are materialized one by one. Then runs a streamed model: a quarter of its
//! parameters may be in the memory of the device, and another quarter in the memory of the host.

use std::thread;

use anyhow::{Context, Result, anyhow};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use tinderbox::deferred::MaterializeOptions;
use tinderbox::deferred::random::Seed;
use tinderbox::planner::{DiskRate, PlanStage};
use tinderbox::{
    Deferred, Evaluation, Machine, MemoryBudget, Outputs, Pipeline, Streamed, Traceable,
};

use crate::bench::{Bench, Runtime, median, timed};
use crate::machine::used_bytes;
use crate::report::Part;

#[derive(Module, Debug)]
pub struct Layers {
    layers: Vec<Linear>,
}

impl Layers {
    /// Creates square layers.
    pub fn new(width: usize, layers: usize, device: &Device) -> Self {
        let layer = LinearConfig::new(width, width).with_bias(false);
        Self {
            layers: (0..layers).map(|_| layer.init(device)).collect(),
        }
    }

    pub fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let y = self.layers.iter().fold(x, |x, layer| layer.forward(x));
        y.mean()
    }
}

const MIB: f64 = (1 << 20) as f64;

pub fn run(bench: &Bench, part: &mut Part) -> Result<()> {
    let (width, layers) = (bench.size.memory_width, bench.size.memory_layers);
    let model = Deferred::new(move |device| Layers::new(width, layers, device))?;
    let example = Tensor::<2>::zeros([1, width], &Device::flex());
    let trace = model.trace(&example, 1, |net: &Layers, x| Outputs::loss(net.loss(x)))?;
    let plan = trace.plan(&Machine::local(4)?)?;
    let parameters = model.parameters();
    part.figure("memory.model", parameters.bytes() as f64 / MIB, "MiB");
    let one = parameters.iter().map(|p| p.bytes).max().unwrap_or(0);
    for stage in &plan.stages {
        // A separate thread has a stream of its own, which starts without memory, as in a pipeline.
        let materialized = thread::scope(|scope| {
            let thread = scope.spawn(|| materialize(bench, part, &model, stage, one));
            thread.join()
        });
        materialized.unwrap_or_else(|_| Err(anyhow!("rank {} panicked", stage.rank)))?;
    }
    if bench.device.memory_pool_usage().is_none() {
        part.note(
            "The allocator of the device reports no statistics, so only the bytes of the parameters are counted.",
        );
    } else if bench.flags.runtime == Runtime::Cuda && used_bytes(bench).is_none() {
        let asked = "the driver reports the used memory of the GPU";
        part.check(asked, "neither NVML nor the driver reports it", false);
    }
    Ok(())
}

/// Materializes one stage and releases all of its memory.
fn materialize(
    bench: &Bench,
    part: &mut Part,
    model: &Deferred<Layers>,
    stage: &PlanStage,
    one: u64,
) -> Result<()> {
    let (rank, planned) = (stage.rank, stage.parameter_bytes);
    let mib = |bytes: u64| bytes as f64 / MIB;
    let source = model.initializer(Seed::new(1));
    bench.device.memory_cleanup();
    bench.device.sync()?;
    let before = (reserved_bytes(&bench.device), used_bytes(bench));
    let of_stage = MaterializeOptions::on(&bench.device);
    let of_stage = of_stage.only(|p| stage.parameters.contains(&p.path));
    let made = model.materialize_parameters(of_stage, &source)?;
    bench.device.sync()?;
    let (asked, found) = (mib(planned), mib(made.bytes()));
    part.check(
        format!("rank {rank} materializes the {asked:.1} MiB of its stage"),
        format!("{found:.1} MiB"),
        made.bytes() == planned,
    );
    // Reserved memory is not released while a stage is materialized, so this is the peak.
    let after = (reserved_bytes(&bench.device), used_bytes(bench));
    let mut within = |asked: String, held: u64, spare: u64| {
        let beyond = (held as f64 - planned as f64) / MIB;
        let found = format!("{beyond:.1} MiB beyond the stage");
        let fits = (planned..=planned + one + spare).contains(&held);
        part.check(asked, found, fits);
    };
    if let (Some(before), Some(after)) = (before.0, after.0) {
        let asked = format!(
            "the allocator of rank {rank} reserves the stage and at most one tensor and 16 MiB more"
        );
        within(asked, after.saturating_sub(before), 16 << 20);
    }
    if let (Some(before), Some(after)) = (before.1, after.1) {
        let taken = after.saturating_sub(before);
        let asked = format!(
            "the GPU memory of rank {rank} is the stage and at most 5 % of it, one tensor and 64 MiB more"
        );
        within(asked, taken, planned / 20 + (64 << 20));
        let name = format!("memory.rank_{rank}_taken_of_gpu");
        part.figure(name, mib(taken), "MiB");
    }
    drop(made);
    // Dropped memory is released after the queued work has completed.
    bench.device.sync()?;
    bench.device.memory_cleanup();
    bench.device.sync()?;
    Ok(())
}

/// Returns the bytes that the device's allocator holds, in use or cached.
fn reserved_bytes(device: &Device) -> Option<u64> {
    Some(device.memory_pool_usage()?.bytes_reserved)
}

/// The number of passes; the first one reads all parameters.
const PASSES: usize = 4;
const SEED: u64 = 1;

pub fn streamed(bench: &Bench, part: &mut Part) -> Result<()> {
    let (width, layers) = (bench.size.memory_width, bench.size.memory_layers);
    let model = Deferred::new(move |device| Layers::new(width, layers, device))?;
    let batch = Tensor::<2>::ones([4, width], &Device::flex());
    let forward = |net: &Layers, x| Outputs::loss(net.loss(x));
    let trace = model.trace_forward(&batch, forward)?;
    let expected = {
        let plan = trace.plan_at(&[])?;
        let pipeline = Pipeline::builder(&model, &trace, &plan).seed(SEED);
        let mut pipeline = pipeline.device(&bench.device).start()?;
        bits(&pipeline.evaluate(batch.clone())?)
    };
    bench.device.sync()?;
    bench.device.memory_cleanup();

    let bytes = model.parameters().bytes();
    // A quarter of the parameters, and a reserve for the activations, which are small.
    let budget = MemoryBudget::Values(bytes / 4 + (64 << 10));
    let plan = trace.plan_streamed(budget)?;
    let mut streamed = Streamed::builder(&model, &trace, &plan)
        .seed(SEED)
        .device(&bench.device)
        .memory_limit(budget)
        .host_memory(bytes / 4)
        .start()?;
    let (mut differ, mut seconds) = (0, Vec::new());
    for _ in 0..PASSES {
        let (pass, took) = timed(|| Ok(streamed.evaluate(batch.clone())?))?;
        differ += usize::from(bits(&pass) != expected);
        seconds.push(took);
    }
    let asked = "a pass has the bits of a pipeline that holds everything";
    part.check(asked, format!("{differ} of {PASSES} differ"), differ == 0);
    let pass = streamed.predict(DiskRate::new(1));
    let pass = pass.context("it was traced for evaluation")?;
    let read = pass.read_bytes as f64 / bytes as f64;
    part.figure("streamed.read", read, "of the model");
    let median = median(seconds).context("there are passes")?;
    part.figure("streamed.pass", median, "s");
    Ok(())
}

fn bits(evaluation: &Evaluation) -> Vec<u64> {
    let losses = evaluation.micro_batch_losses.iter();
    losses.map(|loss| loss.to_bits()).collect()
}
