//! Checks that a checkpoint saved from the device is loaded with the same bits, on the device and on the CPU,
//! and measures the throughput.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use tinderbox::deferred::parameter_values;
use tinderbox::pipeline::OptimizerConfig;
use tinderbox::{
    Checkpoint, Checkpoints, Deferred, DynTensor, Machine, Outputs, Pipeline, Trace, Traceable,
    load_module,
};

use crate::bench::{Bench, settle, timed};
use crate::memory::Layers;
use crate::report::Part;

const LAYERS: usize = 16;

type Run = Pipeline<Layers, Tensor<2>>;

/// The bytes of every parameter, by path.
type Bits = Vec<(String, Vec<u8>)>;

/// The model that is saved.
struct Saved {
    model: Deferred<Layers>,
    trace: Trace<Tensor<2>>,
    data: Tensor<2>,
}

impl Saved {
    fn start(&self, optimizer: impl OptimizerConfig, on: &Device, stages: usize) -> Result<Run> {
        let plan = self.trace.plan(&Machine::local(stages)?)?;
        let builder = Pipeline::builder(&self.model, &self.trace, &plan);
        let builder = builder.optimizer(optimizer).device(on);
        Ok(builder.start()?)
    }

    /// Loads a checkpoint without a pipeline.
    fn load(&self, dir: &Path, on: &Device) -> Result<Bits> {
        bits(&load_module(&self.model, &Checkpoint::open(dir)?, on)?)
    }
}

pub fn run(bench: &Bench, part: &mut Part) -> Result<()> {
    let (width, cpu) = (bench.size.checkpoint_width, Device::flex());
    let model = Deferred::new(move |device| Layers::new(width, LAYERS, device))?;
    let data = Tensor::<2>::ones([2, width], &cpu);
    let trace = model.trace(&data, 1, |net: &Layers, x| Outputs::loss(net.loss(x)))?;
    let scratch = match &bench.flags.scratch {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    };
    let scratch = scratch.context("the directory for checkpoints (--scratch)")?;
    let bytes = model.parameters().bytes();
    limits(bench, part, scratch.path(), bytes)?;

    let saved = Saved { model, trace, data };
    let mut first = saved.start(SgdConfig::new(), &bench.device, 2)?;
    // After a step, the parameters differ from the initial values of the seed.
    first.step(0.1, saved.data.clone())?;
    let expected = bits(&first.gather(&cpu)?)?;
    let speed = |seconds: f64| bytes as f64 / seconds / 1e9;

    let here = Checkpoints::open(scratch.path().join("device"))?;
    let (dir, seconds) = timed(|| Ok(here.save(&mut first, 0)?))?;
    part.figure("checkpoint.save", speed(seconds), "GB/s");

    let mut again = saved.start(SgdConfig::new(), &bench.device, 3)?;
    settle(&mut again)?;
    let ((), seconds) = timed(|| {
        here.resume(&mut again)?;
        settle(&mut again)
    })?;
    part.figure("checkpoint.load", speed(seconds), "GB/s");
    let asked = "saved on the device by 2 stages, loaded there by 3";
    same(part, asked, &expected, &bits(&again.gather(&cpu)?)?);
    drop((first, again));

    let asked = "saved on the device, loaded on the CPU";
    same(part, asked, &expected, &saved.load(&dir, &cpu)?);

    let mut on_cpu = saved.start(SgdConfig::new(), &cpu, 1)?;
    here.resume(&mut on_cpu)?;
    let there = Checkpoints::open(scratch.path().join("cpu"))?;
    let dir = there.save(&mut on_cpu, 0)?;
    let asked = "saved again from the CPU, loaded on the device";
    same(part, asked, &expected, &saved.load(&dir, &bench.device)?);

    background(bench, part, &saved, scratch.path())?;
    part.note(format!(
        "{:.0} MiB in {LAYERS} tensors. The disk write includes a sync; the read is from the page cache.",
        bytes as f64 / (1 << 20) as f64
    ));
    Ok(())
}

/// Checks that a background save contains the values of its step, including the values of the optimizer, while
/// training continues.
fn background(bench: &Bench, part: &mut Part, saved: &Saved, scratch: &Path) -> Result<()> {
    let begin = || saved.start(AdamWConfig::new(), &bench.device, 2);
    let mut pipeline = begin()?;
    pipeline.step(0.01, saved.data.clone())?;
    settle(&mut pipeline)?;
    let expected = state(&mut pipeline)?;
    let saves = Checkpoints::open(scratch.join("background"))?.in_background();
    let (_, blocked) = timed(|| Ok(saves.save(&mut pipeline, 0)?))?;
    let name = "checkpoint.background_save_blocks";
    part.figure(name, blocked * 1e3, "ms");
    for _ in 0..2 {
        pipeline.step(0.01, saved.data.clone())?;
    }
    let differs = state(&mut pipeline)? != expected;
    saves.wait()?;
    let mut again = begin()?;
    saves.resume(&mut again)?;
    let found = state(&mut again)?;
    let asked = "two steps during a save change the state";
    let changed = if differs { "they do" } else { "they do not" };
    part.check(asked, changed, differs);
    let asked = "saved in the background while two steps ran, optimizer included";
    same(part, asked, &expected, &found);
    Ok(())
}

/// Returns parameters and optimizer state of all ranks.
fn state(pipeline: &mut Run) -> Result<Bits> {
    let mut all = bits(&pipeline.gather(&Device::flex())?)?;
    let of_ranks = pipeline.on_ranks(|_, stages| {
        let states = stages.iter().map(|stage| stage.optimizer_snapshot());
        let states = states.map(|state| state.to_host());
        states.collect::<Result<Vec<_>, _>>()
    })?;
    for states in of_ranks {
        let tensors = states?.into_iter().flat_map(|state| state.tensors);
        all.extend(tensors.map(|(name, data)| (name, data.as_bytes().to_vec())));
    }
    all.sort();
    Ok(all)
}

fn bits(module: &Layers) -> Result<Bits> {
    let values = parameter_values(module).into_iter();
    let bits =
        values.map(|(path, value)| Ok((path.to_string(), value.to_data()?.as_bytes().to_vec())));
    bits.collect()
}

fn same(part: &mut Part, asked: &str, expected: &Bits, found: &Bits) {
    let mut pairs = expected.iter().zip(found);
    let (text, passed) = match pairs.find(|(one, other)| one != other) {
        Some((one, _)) => (format!("`{}` has different bits", one.0), false),
        None => ("the same bits".into(), expected.len() == found.len()),
    };
    part.check(asked, text, passed);
}

/// Measures disk throughput and copies to and from the device for the same number of bytes.
fn limits(bench: &Bench, part: &mut Part, scratch: &Path, bytes: u64) -> Result<()> {
    let device = &bench.device;
    let mut figure = |name: &str, begun: Instant| {
        let speed = bytes as f64 / begun.elapsed().as_secs_f64() / 1e9;
        part.figure(format!("checkpoint.{name}"), speed, "GB/s");
    };
    let path = scratch.join("raw");
    let host: Vec<f32> = (0..bytes / 4).map(|i| i as f32).collect();
    let raw = TensorData::new(host, [(bytes / 4) as usize]);
    let begun = Instant::now();
    let mut file = File::create(&path)?;
    file.write_all(raw.as_bytes())?;
    file.sync_all()?;
    figure("raw_write", begun);
    let mut read = vec![0; bytes as usize];
    let begun = Instant::now();
    File::open(&path)?.read_exact(&mut read)?;
    figure("raw_read", begun);
    fs::remove_file(&path)?;

    let mut pinned = raw.clone();
    device.staging([&mut pinned].into_iter());
    device.sync()?;
    for (name, data) in [("pageable", raw), ("pinned", pinned)] {
        let begun = Instant::now();
        let made = DynTensor::from_data(data, device);
        device.sync()?;
        figure(&format!("{name}_to_device"), begun);
        let begun = Instant::now();
        let dtype = made.to_data()?.dtype();
        figure(&format!("after_{name}_to_host"), begun);
        ensure!(dtype == DType::F32, "the copied data has another type");
    }
    Ok(())
}
