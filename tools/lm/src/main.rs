//! Trains the language model of the example `train_lm`, with flags to check the run: the loss of every step, digests, replays,
//! timelines, a comparison with plain Burn, plan files, and every schedule, precision and device.
//!
//! Scripts read its output. The example `train_lm` is the program that a user would write.

mod compare;
mod digests;
mod flags;
mod interrupt;
mod planning;
mod replay;
mod report;
mod sample;
mod settings;
mod timeline;
mod training;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use tinderbox::deferred::open_devices;
use tinderbox::error::{PipelineError, StartError};
use tinderbox::{
    Clipping, Deferred, GradientSum, MixedPrecision, Outputs, Pipeline, Plan, PlanBroadcast,
    Recovery, Traceable, compare_with_burn,
};
use tinderbox_models::language_model::{Gpt, GptConfig};
use tinderbox_models::text::{Text, TokenBatch};
use tracing::Level;

use flags::{AUTO, Flags, Precision, usage};
use report::{figure, process_bytes, say};
use settings::{LENGTH, Lm, SAMPLES};

fn main() -> ExitCode {
    // Warnings of the library, for example about a skipped damaged checkpoint.
    tracing_subscriber::fmt()
        .with_max_level(Level::WARN)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    match run(&Flags::read()) {
        Ok(code) => code,
        Err(error) => {
            report::error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Result<ExitCode> {
    if flags.micro_batches > SAMPLES {
        usage(&format!(
            "--micro-batches {}: a batch has {SAMPLES} samples",
            flags.micro_batches
        ));
    }
    // If a launcher started several processes, each is a rank; otherwise the ranks are threads of this process.
    #[cfg(feature = "mpi")]
    let world = tinderbox::mpi::world()?;
    #[cfg(not(feature = "mpi"))]
    let world = tinderbox::World::from_env()?;
    report::set_quiet(!world.is_first());
    // An unavailable device is reported before any work.
    let devices = open_devices(&flags.device).unwrap_or_else(|error| report::no_device(&error));
    let device = Device::flex();
    let text = Text::load(flags.text.as_deref())?;
    report::text(&text);

    // 1. The model, deferred.
    let config = GptConfig::new(text.vocabulary())
        .with_context(LENGTH)
        .with_dropout(flags.dropout);
    let before = process_bytes();
    let started = Instant::now();
    let model = Deferred::new(move |device| config.init(device))?;
    let record_ms = started.elapsed().as_secs_f64() * 1e3;
    let after = process_bytes();
    say!("\n{model}");
    report::memory(before, after, model.parameters().bytes());

    // 2. Trace and plan. For `auto`, times of a medium size of micro-batches are scaled to all sizes that are tried.
    let micro_batches = match flags.micro_batches {
        AUTO => 8,
        count => count,
    };
    let whole = text.batch(flags.seed, 0, SAMPLES, LENGTH, &device);
    let forward = |m: &Gpt, (tokens, targets): TokenBatch| {
        let (loss, logits) = m.loss(tokens, targets);
        Outputs::loss(loss).with("logits", logits)
    };
    let trace = match flags.precision {
        Precision::F32 => model.trace(&whole, micro_batches, forward),
        Precision::Bf16 => MixedPrecision::bf16(&model).trace(&whole, micro_batches, forward),
        Precision::F16 => MixedPrecision::f16(&model).trace(&whole, micro_batches, forward),
    }?;
    let plan = Plan::broadcast(&world, || {
        let plan = planning::plan(&trace, flags, &devices[0])?;
        if let Some(dir) = flags.plan.parent() {
            // Cargo's target directory may be elsewhere.
            std::fs::create_dir_all(dir)
                .with_context(|| format!("--plan {}", flags.plan.display()))?;
        }
        plan.save(&flags.plan)?;
        anyhow::Ok(plan)
    })?;
    let flags = &Flags {
        micro_batches: plan.step.micro_batches,
        ..flags.clone()
    };
    say!("\n{plan}");
    say!("the plan is in {}", flags.plan.display());
    if flags.compare {
        // The loss and every gradient of the first step.
        let builder = Pipeline::builder(&model, &trace, &plan).seed(flags.seed);
        let report = compare_with_burn(builder.device(&devices[0]), whole, forward)?;
        say!("\n{report}");
        let comparable = flags.precision == Precision::F32 && report.random_operations == 0;
        ensure!(
            report.agrees() || !comparable,
            "the results of the pipeline and plain Burn differ"
        );
    }

    let mut builder = Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new().with_weight_decay(0.01))
        .seed(flags.seed)
        .devices(&devices);
    if let Some(groups) = flags.sum_groups {
        builder = builder.gradient_sum(GradientSum::Tree(groups));
    }
    if let Some(path) = &flags.replay {
        if world.size() > 1 {
            usage("--replay runs all programs in one process: start it without a launcher");
        }
        replay::write(path, builder, &text, flags, &device)?;
        return Ok(ExitCode::SUCCESS);
    }

    // 3. Start the ranks. Each materializes the parameters of its own stages.
    builder = builder
        .observer(report::MaterializeProgress::new())
        .world(&world);
    if flags.recover {
        builder = builder.recovery(Recovery::default());
    }
    if let Some(norm) = flags.clip {
        builder = builder.clip(Clipping::GlobalNorm(norm));
    }
    if flags.trace.is_some() {
        builder = builder.measure();
    }
    let mut pipeline = match builder.start() {
        Err(error @ PipelineError::Start(StartError::Sum { .. })) => {
            usage(&format!("--sum-groups: {error}"))
        }
        Err(error @ PipelineError::Start(StartError::IdleReplicas { .. })) => {
            usage(&format!("--replicas: {error}"))
        }
        pipeline => pipeline?,
    };
    let held = pipeline.on_ranks(|_, stages| stages.iter().map(|s| s.parameter_bytes()).sum())?;
    let held: Vec<u64> = pipeline.all_gather(held)?.concat();
    let share = report::ranks(&held, model.parameters().bytes());

    // 4. Train and save.
    let trained = training::train(&mut pipeline, &world, &text, flags, &device)?;
    if let Some(signal) = trained.interrupted {
        return Ok(ExitCode::from(signal.exit_code()));
    }
    let (losses, tokens_per_s) = (trained.losses, trained.tokens_per_s);

    // 5. Evaluate and sample through the same pipeline, and compare with the model on one device.
    let validation_loss = evaluate(&mut pipeline, &text, &device)?;
    let sampled = sample::generate(&mut pipeline, &text, "ROMEO:\n", 300, LENGTH, flags.seed)?;
    say!("\n{sampled}\n");
    let trained: Gpt = pipeline.gather(&devices[0])?;
    let bound = sample::bound(&devices[0], flags.precision);
    sample::check(&trained, &mut pipeline, &text, &sampled, LENGTH, bound)?;
    pipeline.finish()?;

    // 6. Print the figures.
    figure("train_lm.val_loss", validation_loss, "nats");
    figure("train_lm.tokens_per_s", tokens_per_s, "tokens/s");
    figure("train_lm.record_ms", record_ms, "ms");
    figure("train_lm.largest_stage_share", share, "ratio");
    if flags.compare {
        let difference = compare::largest_difference(&model, &text, flags, &devices[0], &losses)?;
        figure("train_lm.max_loss_diff", difference, "nats");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the mean loss over the validation part.
fn evaluate(pipeline: &mut Lm, text: &Text, device: &Device) -> Result<f64> {
    let (mut sum, mut count) = (0.0, 0);
    for (samples, batch) in text.validation(SAMPLES, LENGTH, device) {
        let loss = pipeline
            .evaluate(batch)?
            .loss
            .expect("the forward has a loss");
        sum += loss * samples as f64;
        count += samples;
    }
    let mean = sum / count as f64;
    say!("validation loss {mean:.4} nats per character over {count} sequences");
    Ok(mean)
}
