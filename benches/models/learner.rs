//! Training steps under burn-train and without it.

use std::sync::Arc;
use std::time::Instant;

use burn::data::dataloader::DataLoader;
use burn::optim::AdamWConfig;
use burn_train::SupervisedTraining;
use burn_train::metric::{AccuracyMetric, LossMetric};
use burn_train::renderer::CliMetricsRenderer;
use tinderbox::{Deferred, Machine, Pipeline, Planner, Traceable};
use tinderbox_benches::figures::median;
use tinderbox_models::digits::data::{self, DigitBatch};
use tinderbox_models::digits::model::Model;
use tinderbox_train::{Epochs, StepItem, learner};

use crate::BENCH;

const BATCH: usize = 64;
const EPOCHS: usize = 4;
const RATE: f64 = 1e-3;
const SEED: u64 = 1;

type Loader = Arc<dyn DataLoader<DigitBatch>>;

/// Prints the time of epochs under burn-train, with two metrics of each step, as a multiple of that in a loop of steps.
pub fn figures() {
    let [digits, _] = data::read().expect("the digits are there");
    let steps = EPOCHS * digits.len().div_ceil(BATCH);
    let loader = || data::loader(digits.clone(), BATCH, Some(SEED));
    let start = || {
        let mut pipeline = start(&loader());
        // The first step loads programs and allocates memory.
        let batch = loader().iter().next().expect("there are digits");
        pipeline
            .step(RATE, batch.expect("it is read"))
            .expect("it steps");
        pipeline
    };
    let (mut ratios, mut times) = (Vec::new(), Vec::new());
    for turn in 0..BENCH.turns() {
        let mut measured = [alone, under_burn_train].map(|run| (run, start()));
        // In turn, the first is the second.
        if turn % 2 == 1 {
            measured.reverse();
        }
        let mut seconds = measured.map(|(run, pipeline)| run(pipeline, &loader()));
        if turn % 2 == 1 {
            seconds.reverse();
        }
        let [alone, learner] = seconds;
        ratios.push(learner / alone);
        times.push(alone / steps as f64);
    }
    BENCH.figure("learner_bare_step_ms", median(times) * 1e3, "ms");
    BENCH.figure("learner_overhead", median(ratios), "ratio");
}

fn start(loader: &Loader) -> Pipeline<Model, DigitBatch> {
    let model = Deferred::new(Model::new).expect("it is recorded");
    let example = loader.iter().next().expect("there are digits");
    let trace = model.trace(&example.expect("it is read"), 1, |model: &Model, batch| {
        model.forward_classification(batch).into_outputs()
    });
    let trace = trace.expect("it is traced");
    let machine = Machine::local(1).expect("a machine of one rank");
    let plan = Planner::new(&trace, &machine).plan();
    Pipeline::builder(&model, &trace, &plan.expect("it is planned"))
        .optimizer(AdamWConfig::new())
        .seed(SEED)
        .start()
        .expect("it starts")
}

fn alone(mut pipeline: Pipeline<Model, DigitBatch>, loader: &Loader) -> f64 {
    let started = Instant::now();
    let mut epochs = Epochs::new(loader.clone());
    let mut losses = 0.0;
    for _ in 0..EPOCHS {
        for batch in epochs.next_epoch().expect("it begins") {
            let step = pipeline.step(RATE, batch.expect("it is read"));
            losses += step.expect("it steps").loss;
        }
    }
    assert!(losses > 0.0);
    started.elapsed().as_secs_f64()
}

fn under_burn_train(pipeline: Pipeline<Model, DigitBatch>, loader: &Loader) -> f64 {
    let dir = tempfile::tempdir().expect("a directory");
    let (learner, strategy) = learner(pipeline, RATE);
    let strategy = strategy.without_gather();
    let started = Instant::now();
    let trained = SupervisedTraining::new(dir.path(), loader.clone(), loader.slice(0, 1))
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .num_epochs(EPOCHS)
        .with_application_logger(None)
        .renderer(Box::new(CliMetricsRenderer::new()))
        .with_training_strategy(strategy.into())
        .launch(learner);
    let seconds = started.elapsed().as_secs_f64();
    assert!(trained.error.is_none(), "{:?}", trained.error);
    seconds
}
