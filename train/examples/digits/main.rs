//! Trains Burn's model for MNIST on small handwritten digits, in pipeline stages, under burn-train: with its metrics,
//! early stopping, learning-rate scheduler and summary, and with exact resume.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use burn::optim::AdamWConfig;
use burn::optim::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn_train::metric::store::{Aggregate, Direction, Split};
use burn_train::metric::{AccuracyMetric, LearningRateMetric, LossMetric};
use burn_train::{MetricEarlyStoppingStrategy, StoppingCondition, SupervisedTraining};
use clap::Parser;
use tinderbox::checkpoint::Retention;
use tinderbox::{Checkpoints, Deferred, Machine, Pipeline, Planner, Traceable};
use tinderbox_models::digits::data;
use tinderbox_models::digits::model::Model;
use tinderbox_train::{StepItem, learner};

const BATCH: usize = 32;
const SEED: u64 = 42;

/// Trains a classifier of handwritten digits in pipeline stages, under burn-train
#[derive(Parser, Debug)]
#[command(name = "digits")]
struct Flags {
    /// Number of pipeline stages
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=8))]
    stages: u64,
    /// Number of micro-batches of a batch of 32
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=32))]
    micro_batches: u64,
    /// Number of epochs
    #[arg(long, default_value_t = 5)]
    epochs: usize,
    /// Directory of logs and checkpoints; a run in it is resumed
    #[arg(long, default_value = "target/digits")]
    dir: PathBuf,
}

fn main() -> ExitCode {
    match run(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Result<()> {
    let [train, valid] = data::read()?;
    let steps = flags.epochs * train.len().div_ceil(BATCH);
    let train = data::loader(train, BATCH, Some(SEED));
    let valid = data::loader(valid, BATCH, None);
    let validation = valid.clone();

    let model = Deferred::new(Model::new)?;
    let example = train.iter().next().expect("there are digits")?;
    let trace = model.trace(
        &example,
        flags.micro_batches as usize,
        |model: &Model, batch| model.forward_classification(batch).into_outputs(),
    )?;
    let plan = Planner::new(&trace, &Machine::local(flags.stages as usize)?).plan()?;
    println!("{plan}");
    let pipeline = Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .seed(SEED)
        .measure()
        .start()?;

    let scheduler = CosineAnnealingLrSchedulerConfig::new(1e-3, steps.max(1))
        .init()
        .map_err(anyhow::Error::msg)?;
    let (learner, strategy) = learner(pipeline, scheduler);
    let strategy = strategy
        .checkpoints(Checkpoints::open(flags.dir.join("steps"))?.keep(Retention::newest(2)));
    let trained = SupervisedTraining::new(&flags.dir, train, valid)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .metric_train_numeric(LearningRateMetric::new())
        .metric_train_numeric(strategy.gradient_norm())
        .metric_train_numeric(strategy.idle_share())
        .metric_train_numeric(strategy.held_bytes())
        .early_stopping(MetricEarlyStoppingStrategy::new(
            &LossMetric::new(),
            Aggregate::Mean,
            Direction::Lowest,
            Split::Valid,
            StoppingCondition::NoImprovementSince { n_epochs: 3 },
        ))
        .num_epochs(flags.epochs)
        .summary()
        .with_training_strategy(strategy.into())
        .launch(learner);
    if let Some(error) = trained.error {
        bail!("{error}");
    }
    if let Some(interruption) = trained.interrupted {
        let reason = interruption.reason.unwrap_or_default();
        println!("interrupted {reason}: the same command continues");
    }

    // The trained model is an ordinary module.
    let (mut right, mut all) = (0, 0);
    for batch in validation.iter() {
        let item = trained.model.forward_classification(batch?);
        let found = item.output.argmax(1).squeeze_dim::<1>(1);
        all += found.dims()[0];
        right += found.equal(item.targets).int().sum().into_scalar::<i64>();
    }
    let accuracy = right as f64 / all as f64;
    println!("figure digits.valid_accuracy {accuracy:.4} ratio");
    Ok(())
}
