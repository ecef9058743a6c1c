//! The models, and the creation and execution of their plans.

use std::time::Instant;

use anyhow::{Context, Result};
use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use indicatif::{ProgressBar, ProgressStyle};
use tinderbox::pipeline::{Profiler, calibrate};
use tinderbox::planner::Partitioner;
use tinderbox::{
    Batch, Deferred, Machine, Outputs, Pipeline, Plan, Planner, ScheduleKind, Trace, Traceable,
};
use tinderbox_models::encoder_decoder::{EncoderDecoder, EncoderDecoderConfig};
use tinderbox_models::experts::{Experts, ExpertsConfig};
use tinderbox_models::language_model::{Gpt, GptConfig};
use tinderbox_models::resnet::{ResNet, ResNetConfig};
use tinderbox_models::unet::{UNet, UNetConfig};

use crate::flags::Flags;
use crate::table::{self, Row};

type Words = Tensor<2, Int>;
type Pictures = Tensor<4>;

const SCHEDULE: ScheduleKind = ScheduleKind::OneFOneB;
/// Number of warm-up steps.
const WARM_UP: usize = 2;

/// Runs all models selected by the flags.
pub fn run(flags: &Flags) -> Result<()> {
    let machine = calibrate(&Device::flex(), flags.ranks, 1)?;
    table::header(flags.ranks, flags.micro_batches, flags.turns);
    gpt(flags, &machine)?;
    encoder_decoder(flags, &machine)?;
    unet(flags, &machine)?;
    resnet(flags, &machine)?;
    experts(flags, &machine)
}

/// Returns deterministic pseudorandom words.
fn words(shape: [usize; 2], vocabulary: usize, seed: usize) -> Words {
    let values: Vec<i64> = (0..shape[0] * shape[1])
        .map(|index| ((index * 7919 + seed) % vocabulary) as i64)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

fn floats<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Default, &Device::flex())
}

fn gpt(flags: &Flags, machine: &Machine) -> Result<()> {
    const VOCABULARY: usize = 2048;
    let config = GptConfig::new(VOCABULARY).with_layers(6);
    let length = config.context;
    let batch = [1, 2].map(|seed| words([32, length], VOCABULARY, seed));
    compare(
        flags,
        machine,
        "GPT-like",
        move |device| config.init(device),
        batch.into(),
        |gpt: &Gpt, (tokens, targets): (Words, Words)| Outputs::loss(gpt.loss(tokens, targets).0),
    )
}

fn encoder_decoder(flags: &Flags, machine: &Machine) -> Result<()> {
    let config = EncoderDecoderConfig::new(1024, 128, 6);
    let batch = (
        (words([32, 48], 1024, 1), words([32, 48], 1024, 2)),
        words([32, 48], 1024, 3),
    );
    compare(
        flags,
        machine,
        "Encoder-decoder with one embedding",
        move |device| config.init(device),
        batch,
        |model: &EncoderDecoder, ((source, target), expected): ((Words, Words), Words)| {
            let logits = model.forward(source, target);
            Outputs::loss(model.loss(logits, expected))
        },
    )
}

fn unet(flags: &Flags, machine: &Machine) -> Result<()> {
    let config = UNetConfig::new(8, 3);
    let batch = (floats([32, 3, 32, 32]), floats([32, 3, 32, 32]));
    compare(
        flags,
        machine,
        "U-Net-like",
        move |device| config.init(device),
        batch,
        |model: &UNet, (x, y): (Pictures, Pictures)| {
            Outputs::loss((model.forward(x) - y).powi_scalar(2).mean())
        },
    )
}

fn resnet(flags: &Flags, machine: &Machine) -> Result<()> {
    let config = ResNetConfig::new(16, 3, 2, 10);
    let batch = (floats([32, 3, 16, 16]), floats([32, 10]));
    compare(
        flags,
        machine,
        "ResNet-like with group norms",
        move |device| config.init(device),
        batch,
        |model: &ResNet, (x, y): (Pictures, Tensor<2>)| {
            Outputs::loss((model.forward(x) - y).powi_scalar(2).mean())
        },
    )
}

fn experts(flags: &Flags, machine: &Machine) -> Result<()> {
    let config = ExpertsConfig::new([64, 32], 192, 3, 4);
    let batch = (floats([512, 64]), floats([512, 32]));
    compare(
        flags,
        machine,
        "Mixture of experts with dense routing",
        move |device| config.init(device),
        batch,
        |model: &Experts, (x, y): (Tensor<2>, Tensor<2>)| {
            Outputs::loss((model.forward(x) - y).powi_scalar(2).mean())
        },
    )
}

/// Plans a model with every built-in partitioner, and measures the plans alternately.
fn compare<M: Module + Sync + 'static, B: Batch>(
    flags: &Flags,
    machine: &Machine,
    title: &str,
    init: impl Fn(&Device) -> M + Send + Sync + 'static,
    batch: B,
    forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
) -> Result<()> {
    if !title.to_lowercase().contains(&flags.model.to_lowercase()) {
        return Ok(());
    }
    let model = Deferred::new(init)?;
    // The program is the one of a micro-batch, and so are the times and bytes of its plans.
    let trace = model.trace(&batch, flags.micro_batches, forward)?;
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} blocks {msg}")?;
    let bar = ProgressBar::new(0).with_style(style);
    let profile = Profiler::new(&trace)
        .depth(3)
        .beside(flags.ranks)
        .progress(|done, all, name| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            bar.set_message(format!("{title}: {name}"));
        })
        .measure()?;
    bar.finish_and_clear();
    let times = profile.times(&trace)?;
    let mut rows: Vec<Row> = Partitioner::ALL
        .into_iter()
        .map(|partitioner| Row {
            partitioner: partitioner.to_string(),
            plan: Planner::new(&trace, machine)
                .schedule(SCHEDULE)
                .partitioner(partitioner)
                .times(times.clone())
                .plan()
                .map_err(|error| error.to_string()),
            steps: Vec::new(),
        })
        .collect();
    measure(flags, &model, &trace, &batch, &mut rows)?;
    let facts = format!(
        "{} parameters, {} operations in the forward, {} blocks measured.",
        model.parameters().elements(),
        rows.iter()
            .find_map(|row| row.plan.as_ref().ok())
            .map_or(0, |plan| plan.forward.len()),
        profile.blocks.len(),
    );
    table::print(title, &facts, &rows);
    Ok(())
}

/// Returns the times of the steps of every plan in seconds. The plans alternate, because the speed of the
/// machine drifts.
fn measure<M: Module + Sync + 'static, B: Batch>(
    flags: &Flags,
    model: &Deferred<M>,
    trace: &Trace<B>,
    batch: &B,
    rows: &mut [Row],
) -> Result<()> {
    let start = |plan: &Plan| {
        Pipeline::builder(model, trace, plan)
            .optimizer(AdamWConfig::new())
            .threads_per_rank(1)
            .start()
    };
    let mut running = Vec::new();
    for row in rows {
        if let Ok(plan) = &row.plan {
            let pipeline = start(plan).with_context(|| row.partitioner.clone())?;
            running.push((pipeline, &mut row.steps));
        }
    }
    for turn in 0..WARM_UP + flags.turns {
        for (pipeline, steps) in &mut running {
            let started = Instant::now();
            pipeline.step(1e-3, batch.clone())?;
            if turn >= WARM_UP {
                steps.push(started.elapsed().as_secs_f64());
            }
        }
    }
    Ok(())
}
