//! A model in stages, each lit alone: what the device then holds.

use anyhow::Result;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use tinderbox::random::Seed;
use tinderbox::{Deferred, Machine, MaterializeOptions, Outputs, Plan, Traceable};

use crate::Bench;
use crate::machine::used_bytes;
use crate::report::Part;

#[derive(Module, Debug)]
pub struct Layers {
    layers: Vec<Linear>,
}

impl Layers {
    /// Square layers.
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
    let source = model.replay(Seed::new(1));
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
    for (rank, stage) in plan.stages().iter().enumerate() {
        bench.device.memory_cleanup();
        bench.device.sync()?;
        let before = (pool_bytes(&bench.device), used_bytes(bench));
        let of_stage = MaterializeOptions::only(|p| stage.parameters.contains(&p.path));
        let made = model.materialize_parameters(&bench.device, &source, of_stage)?;
        bench.device.sync()?;
        let planned = stage.parameter_bytes;
        let asked = format!(
            "rank {rank} makes the {:.1} MiB of its stage",
            planned as f64 / MIB
        );
        part.check(
            asked,
            format!("{:.1} MiB", made.bytes() as f64 / MIB),
            made.bytes() == planned,
        );
        // Nothing is given back while a stage is made, so what is held afterwards is the most that was held.
        if let (Some(before), Some(after)) = (before.0, pool_bytes(&bench.device)) {
            let held = after.saturating_sub(before);
            let most = planned + one + (16 << 20);
            let asked =
                format!("the allocator of rank {rank} holds no more than the stage and one tensor");
            let found = format!(
                "{:.1} MiB beyond the stage",
                (held as f64 - planned as f64) / MIB
            );
            part.check(asked, found, (planned..=most).contains(&held));
        }
        if let (Some(before), Some(after)) = (before.1, used_bytes(bench)) {
            let taken = after.saturating_sub(before);
            part.figure(
                format!("memory.rank_{rank}_taken_of_gpu"),
                taken as f64 / MIB,
                "MiB",
            );
            let asked = format!(
                "the GPU gives rank {rank} no more than the stage and one tensor, within 5 %"
            );
            let found = format!(
                "{:.1} MiB beyond the stage",
                (taken as f64 - planned as f64) / MIB
            );
            part.check(
                asked,
                found,
                taken <= planned + planned / 20 + one + (64 << 20),
            );
        }
        drop(made);
    }
    bench.device.memory_cleanup();
    if pool_bytes(&bench.device).is_none() {
        part.note(
            "The device has no allocator that reports, so bytes are those of the parameters only.",
        );
    }
    Ok(())
}

/// What the device's allocator has given out.
fn pool_bytes(device: &Device) -> Option<u64> {
    Some(device.memory_pool_usage()?.bytes_in_use)
}
