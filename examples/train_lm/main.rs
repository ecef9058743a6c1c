//! Trains a character-level language model in pipeline stages, and prints the plan, the losses and a sample of text.
//!
//! With `--save DIR` it saves, and continues when it is started again, with any number of stages. Ctrl-C and SIGTERM end it after
//! its running step.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use clap::Parser;
use tinderbox::checkpoint::Run;
use tinderbox::session::Printer;
use tinderbox::{
    Checkpoints, Deferred, Generate, Machine, Outputs, Pipeline, Plan, PlanBroadcast, Planner,
    Position, Sampler, Session, Traceable, World,
};
use tinderbox_models::language_model::{Gpt, GptConfig};
use tinderbox_models::text::{Text, TokenBatch};

/// Samples of a batch, and tokens of a sample.
const SAMPLES: usize = 32;
const LENGTH: usize = 64;
const MICRO_BATCHES: usize = 8;

#[derive(Parser)]
#[command(about = "Trains a character-level language model in pipeline stages")]
struct Flags {
    /// Pipeline stages, each on a rank with its own thread or process
    #[arg(long, default_value_t = 4)]
    stages: usize,
    /// Training steps, those before a resume included
    #[arg(long, default_value_t = 600)]
    steps: u64,
    /// Text to train on [default: Shakespeare's, which is in the program]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Seed of initial values, dropout, the order of the samples and the text that is drawn
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Directory of the checkpoints, from which it continues
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Steps between two checkpoints
    #[arg(long, default_value_t = 100, requires = "save")]
    save_every: u64,
}

/// Warms up, then decays to a tenth along half a cosine.
fn learning_rate(step: u64, steps: u64) -> f64 {
    let warm = (step + 1) as f64 / 40.0;
    let done = step as f64 / steps as f64;
    3e-3 * warm.min(0.1 + 0.45 * (1.0 + (std::f64::consts::PI * done).cos()))
}

fn main() -> Result<ExitCode> {
    let flags = Flags::parse();
    // The ranks are threads of this process, or the processes of a launcher, of which the first prints.
    let world = World::from_env()?;
    let device = Device::flex();
    let text = Text::load(flags.text.as_deref())?;
    let batch = |sample| text.batch(flags.seed, sample, SAMPLES, LENGTH, &device);
    let validation = || {
        let batches = text.validation(SAMPLES, LENGTH, &device);
        batches.map(|(_, batch)| batch)
    };

    // 1. The model, recorded: nothing is allocated.
    let config = GptConfig::new(text.vocabulary()).with_context(LENGTH);
    let model = Deferred::new(move |device| config.init(device))?;

    // 2. The forward is traced for a step of several micro-batches, and the first process plans for all.
    let forward = |gpt: &Gpt, (tokens, targets): TokenBatch| {
        let (loss, logits) = gpt.loss(tokens, targets);
        Outputs::loss(loss).with("logits", logits)
    };
    let trace = model.trace(&batch(0), MICRO_BATCHES, forward)?;
    let plan = Plan::broadcast(&world, || {
        let machine = Machine::local(flags.stages)?;
        Planner::new(&trace, &machine).plan()
    })?;
    if world.is_first() {
        println!("{model}\n{plan}");
    }

    // 3. Each rank materializes the parameters of its own stages.
    let pipeline = Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new().with_weight_decay(0.01))
        .seed(flags.seed)
        .world(&world)
        .start()?;

    // 4. Train.
    let mut session = Session::builder(pipeline)
        .learning_rate(|step| learning_rate(step, flags.steps))
        .steps(flags.steps)
        .evaluate_every(250, validation)
        .on_event(Printer::new().unit("tokens", LENGTH as f64))
        .stop_on_signals()?;
    if let Some(dir) = &flags.save {
        let saves = Checkpoints::in_world(Run::local(dir), &world)?
            .every(flags.save_every)
            .describe_learning_rates(format!("half a cosine in {} steps", flags.steps));
        session = session.checkpoints(saves);
    }
    let mut session = session.start()?;
    let outcome = session.train(|position: Position| batch(position.sample))?;
    if let Some(by) = outcome.interrupted {
        return Ok(ExitCode::from(by.exit_code()));
    }
    let validated = session.evaluate(validation())?;

    // 5. A sample through the same pipeline, and the trained model as an ordinary Burn module.
    let mut pipeline = session.into_pipeline();
    let mut scores = |written: &[i32], _: usize| -> Result<TensorData> {
        let mut window = written[written.len().saturating_sub(LENGTH)..].to_vec();
        let last = window.len() - 1;
        // The causal mask hides the padding, so that one traced program serves every length.
        window.resize(LENGTH, 0);
        let tokens = TensorData::new(window, [1, LENGTH]);
        let tokens = Tensor::<2, Int>::from_data(tokens, &device);
        let output = pipeline.evaluate((tokens.clone(), tokens))?;
        let logits = output.tensor::<3>("logits")?;
        Ok(logits.slice([0..1, last..last + 1]).into_data())
    };
    let prompt = "ROMEO:\n";
    let sampler = Sampler::new(flags.seed).temperature(0.8);
    let written = Generate::new(300).sampler(sampler);
    let written = written.run_with(&mut scores, &text.encode(prompt), |_| ())?;
    let trained: Gpt = pipeline.gather(&device)?;
    if world.is_first() {
        let tokens_per_s = outcome.samples_per_s() * LENGTH as f64;
        println!("\n{prompt}{}\n", text.decode(&written.tokens));
        println!("{} parameters were trained", trained.num_params());
        println!("figure train_lm.val_loss {:.6} nats", validated.loss);
        println!("figure train_lm.tokens_per_s {tokens_per_s:.6} tokens/s");
    }
    Ok(ExitCode::SUCCESS)
}
