//! Measures the device memory of a model whose stages are materialized one by one.

use std::thread;

use anyhow::{Result, anyhow};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use tinderbox::planner::PlanStage;
use tinderbox::random::Seed;
use tinderbox::{Deferred, Machine, MaterializeOptions, Outputs, Plan, Traceable};

use crate::bench::Bench;
use crate::flags::Runtime;
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
    let trace = model.trace(&example, |net: &Layers, x| Outputs::loss(net.loss(x)))?;
    let plan = Plan::auto(&trace, &Machine::local(4)?)?;
    part.figure(
        "memory.model",
        model.parameters().bytes() as f64 / MIB,
        "MiB",
    );
    let one = model
        .parameters()
        .iter()
        .map(|p| p.bytes)
        .max()
        .unwrap_or(0);
    for stage in plan.stages() {
        // On a separate thread, as in a pipeline: its stream starts without memory.
        let materialized = thread::scope(|scope| {
            let thread = scope.spawn(|| materialize(bench, part, &model, stage, one));
            thread.join()
        });
        materialized.unwrap_or_else(|_| Err(anyhow!("rank {} panicked", stage.rank)))?;
    }
    if bench.device.memory_pool_usage().is_none() {
        part.note(
            "The allocator of the device reports no statistics, so bytes are those of the parameters only.",
        );
    } else if bench.flags.runtime == Runtime::Cuda && used_bytes(bench).is_none() {
        part.check(
            "the driver reports the used memory of the GPU",
            "neither NVML nor the driver reports it",
            false,
        );
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
    let source = model.replay(Seed::new(1));
    bench.device.memory_cleanup();
    bench.device.sync()?;
    let before = (reserved_bytes(&bench.device), used_bytes(bench));
    let of_stage = MaterializeOptions::only(|p| stage.parameters.contains(&p.path));
    let made = model.materialize_parameters(&bench.device, &source, of_stage)?;
    bench.device.sync()?;
    let asked = format!(
        "rank {rank} materializes the {:.1} MiB of its stage",
        mib(planned)
    );
    part.check(
        asked,
        format!("{:.1} MiB", mib(made.bytes())),
        made.bytes() == planned,
    );
    // Reserved memory is not released while a stage is materialized, so this is the peak.
    let after = (reserved_bytes(&bench.device), used_bytes(bench));
    let beyond = |held: u64| {
        format!(
            "{:.1} MiB beyond the stage",
            (held as f64 - planned as f64) / MIB
        )
    };
    if let (Some(before), Some(after)) = (before.0, after.0) {
        let held = after.saturating_sub(before);
        let asked = format!(
            "the allocator of rank {rank} reserves the stage and at most one tensor and 16 MiB more"
        );
        let most = planned + one + (16 << 20);
        part.check(asked, beyond(held), (planned..=most).contains(&held));
    }
    if let (Some(before), Some(after)) = (before.1, after.1) {
        let taken = after.saturating_sub(before);
        part.figure(
            format!("memory.rank_{rank}_taken_of_gpu"),
            mib(taken),
            "MiB",
        );
        let asked = format!(
            "the GPU memory of rank {rank} is the stage and at most 5 % of it, one tensor and 64 MiB more"
        );
        let most = planned + planned / 20 + one + (64 << 20);
        part.check(asked, beyond(taken), (planned..=most).contains(&taken));
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
