//! Checks that a checkpoint saved from the device is loaded with the same bits, on the device and on the CPU,
//! and measures the throughput.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use tinderbox::{
    Checkpoint, Checkpoints, Deferred, DynTensor, Machine, OptimizerConfig, Outputs, Pipeline,
    Plan, Trace, Traceable, load_module, parameter_values,
};

use crate::bench::{Bench, settle};
use crate::memory::Layers;
use crate::report::Part;

const LAYERS: usize = 16;

type Run = Pipeline<Layers, Tensor<2>>;

/// The bytes of every parameter, by path.
type Bits = Vec<(String, Vec<u8>)>;

pub fn run(bench: &Bench, part: &mut Part) -> Result<()> {
    let width = bench.size.checkpoint_width;
    let model = Deferred::new(move |device| Layers::new(width, LAYERS, device))?;
    let example = Tensor::<2>::zeros([2, width], &Device::flex());
    let trace = model.trace(&example, |net: &Layers, x| Outputs::loss(net.loss(x)))?;
    let scratch = match &bench.flags.scratch {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    };
    let scratch = scratch.context("the directory for checkpoints (--scratch)")?;
    let bytes = model.parameters().bytes();
    limits(bench, part, scratch.path(), bytes)?;

    let mut first = start(&model, &trace, &bench.device, 2)?;
    // The parameters then differ from the seed's.
    first.step(0.1, Tensor::ones([2, width], &Device::flex()))?;
    let saved = bits(&first.gather(&Device::flex())?)?;
    let gigabytes_per_second = |seconds: f64| bytes as f64 / seconds / 1e9;

    let here = Checkpoints::open(scratch.path().join("device"))?;
    let begun = Instant::now();
    let dir = here.save(&mut first, 0)?;
    part.figure(
        "checkpoint.save",
        gigabytes_per_second(begun.elapsed().as_secs_f64()),
        "GB/s",
    );

    let mut again = start(&model, &trace, &bench.device, 3)?;
    settle(&mut again)?;
    let begun = Instant::now();
    here.resume(&mut again)?;
    settle(&mut again)?;
    part.figure(
        "checkpoint.load",
        gigabytes_per_second(begun.elapsed().as_secs_f64()),
        "GB/s",
    );
    same(
        part,
        "saved on the device by 2 stages, loaded there by 3",
        &saved,
        bits(&again.gather(&Device::flex())?)?,
    );
    drop((first, again));

    let checkpoint = Checkpoint::open(&dir)?;
    let on_cpu = load_module(&model, &checkpoint, &Device::flex())?;
    same(
        part,
        "saved on the device, loaded on the CPU",
        &saved,
        bits(&on_cpu)?,
    );

    let mut cpu = start(&model, &trace, &Device::flex(), 1)?;
    here.resume(&mut cpu)?;
    let there = Checkpoints::open(scratch.path().join("cpu"))?;
    let dir = there.save(&mut cpu, 0)?;
    let back = load_module(&model, &Checkpoint::open(&dir)?, &bench.device)?;
    same(
        part,
        "saved again from the CPU, loaded on the device",
        &saved,
        bits(&back)?,
    );

    background(bench, part, &model, &trace, scratch.path())?;
    part.note(format!(
        "{:.0} MiB in {LAYERS} tensors. The disk write includes a sync; the read is from the page cache.",
        bytes as f64 / (1 << 20) as f64
    ));
    Ok(())
}

/// Checks that a background save contains the values of its step, including the values of the optimizer, while
/// training continues.
fn background(
    bench: &Bench,
    part: &mut Part,
    model: &Deferred<Layers>,
    trace: &Trace<Tensor<2>>,
    scratch: &Path,
) -> Result<()> {
    let batch = || Tensor::ones([2, bench.size.checkpoint_width], &Device::flex());
    let begin = || start_with(AdamWConfig::new(), model, trace, &bench.device, 2);
    let mut pipeline = begin()?;
    pipeline.step(0.01, batch())?;
    settle(&mut pipeline)?;
    let expected = state(&mut pipeline)?;
    let behind = Checkpoints::open(scratch.join("background"))?.in_background();
    let begun = Instant::now();
    behind.save(&mut pipeline, 0)?;
    let blocked = begun.elapsed().as_secs_f64() * 1e3;
    part.figure("checkpoint.background_save_blocks", blocked, "ms");
    for _ in 0..2 {
        pipeline.step(0.01, batch())?;
    }
    let differs = state(&mut pipeline)? != expected;
    behind.wait()?;
    let mut again = begin()?;
    behind.resume(&mut again)?;
    let found = state(&mut again)?;
    let asked = "two steps during a save change the state";
    part.check(
        asked,
        if differs { "they do" } else { "they do not" },
        differs,
    );
    let asked = "saved in the background while two steps ran, optimizer included";
    same(part, asked, &expected, found);
    Ok(())
}

/// Returns parameters and optimizer state of all ranks.
fn state(pipeline: &mut Run) -> Result<Bits> {
    let mut all = bits(&pipeline.gather(&Device::flex())?)?;
    let of_ranks = pipeline.on_ranks(|_, stages| {
        let states = stages
            .iter()
            .map(|stage| stage.optimizer_snapshot().to_host());
        states.collect::<Result<Vec<_>, _>>()
    })?;
    for states in of_ranks {
        let tensors = states?.into_iter().flat_map(|state| state.tensors);
        all.extend(tensors.map(|(name, data)| (name, data.as_bytes().to_vec())));
    }
    all.sort();
    Ok(all)
}

fn start(
    model: &Deferred<Layers>,
    trace: &Trace<Tensor<2>>,
    device: &Device,
    stages: usize,
) -> Result<Run> {
    start_with(SgdConfig::new(), model, trace, device, stages)
}

fn start_with(
    optimizer: impl OptimizerConfig,
    model: &Deferred<Layers>,
    trace: &Trace<Tensor<2>>,
    device: &Device,
    stages: usize,
) -> Result<Run> {
    let plan = Plan::auto(trace, &Machine::local(stages)?)?;
    let builder = Pipeline::new(model, trace, &plan);
    let builder = builder.optimizer(optimizer).device(device);
    Ok(builder.micro_batches(1).start()?)
}

fn bits(module: &Layers) -> Result<Bits> {
    let values = parameter_values(module).into_iter();
    let bits =
        values.map(|(path, value)| Ok((path.to_string(), value.to_data()?.as_bytes().to_vec())));
    bits.collect()
}

fn same(part: &mut Part, asked: &str, expected: &Bits, found: Bits) {
    let differs = expected
        .iter()
        .zip(&found)
        .find(|(one, other)| one != other);
    let (found, passed) = match differs {
        Some((one, _)) => (format!("`{}` has different bits", one.0), false),
        None => ("the same bits".into(), expected.len() == found.len()),
    };
    part.check(asked, found, passed);
}

/// Measures disk throughput and copies to and from the device for the same number of bytes.
fn limits(bench: &Bench, part: &mut Part, scratch: &Path, bytes: u64) -> Result<()> {
    let speed = |begun: Instant| bytes as f64 / begun.elapsed().as_secs_f64() / 1e9;
    let path = scratch.join("raw");
    let mut host: Vec<f32> = (0..bytes / 4).map(|i| i as f32).collect();
    let raw = TensorData::new(std::mem::take(&mut host), [(bytes / 4) as usize]);
    let begun = Instant::now();
    let mut file = File::create(&path)?;
    file.write_all(raw.as_bytes())?;
    file.sync_all()?;
    part.figure("checkpoint.raw_write", speed(begun), "GB/s");
    let mut read = vec![0; bytes as usize];
    let begun = Instant::now();
    File::open(&path)?.read_exact(&mut read)?;
    part.figure("checkpoint.raw_read", speed(begun), "GB/s");
    std::fs::remove_file(&path)?;

    let mut pinned = raw.clone();
    bench.device.staging([&mut pinned].into_iter());
    bench.device.sync()?;
    for (name, data) in [("pageable", raw), ("pinned", pinned)] {
        let begun = Instant::now();
        let made = DynTensor::from_data(data, &bench.device);
        bench.device.sync()?;
        part.figure(format!("checkpoint.{name}_to_device"), speed(begun), "GB/s");
        let begun = Instant::now();
        let data = made.to_data()?;
        part.figure(
            format!("checkpoint.after_{name}_to_host"),
            speed(begun),
            "GB/s",
        );
        anyhow::ensure!(
            data.dtype() == DType::F32,
            "the copied data has another type"
        );
    }
    Ok(())
}
