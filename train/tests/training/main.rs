//! Pipelines under burn-train, compared with burn-train's own training on one device.

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::module::Module;
use burn::tensor::Device;
use burn_train::metric::store::{Aggregate, Direction, Split};
use burn_train::metric::{AccuracyMetric, LossMetric};
use burn_train::renderer::CliMetricsRenderer;
use burn_train::{
    ClassificationOutput, ExecutionStrategy, InferenceStep, Interrupter, Learner, LearningResult,
    MetricEarlyStoppingStrategy, StoppingCondition, SupervisedTraining, TrainOutput, TrainStep,
    TrainingError,
};
use tinderbox::checkpoint::Retention;
use tinderbox::{Checkpoints, Deferred, Machine, Outputs, Pipeline, Planner, Traceable};
use tinderbox_train::{PipelineStrategy, StepItem, StepMetric, learner, learner_with};

use support::{
    EPOCHS, Net, Points, SEED, bits, optimizer, pipeline, scheduler, start, start_on, train_loader,
    training,
};

/// A number for each step or epoch, as burn-train logs them: by split and name.
fn log(dir: &Path, split: &str, name: &str) -> Vec<f64> {
    let mut epochs: Vec<_> = std::fs::read_dir(dir.join(split)).unwrap().collect();
    epochs.sort_by_key(|epoch| epoch.as_ref().unwrap().file_name());
    let logs = epochs.into_iter().map(|epoch| {
        epoch
            .unwrap()
            .path()
            .join(format!("{}.log", name.replace(' ', "_")))
    });
    let lines = logs.flat_map(|log| {
        let text =
            std::fs::read_to_string(&log).unwrap_or_else(|e| panic!("{}: {e}", log.display()));
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    // A line is the value of a step, its number of items, and "final" for the value of an epoch.
    let steps = lines.filter(|line| !line.contains("final"));
    steps
        .filter_map(|line| line.split(',').next()?.parse().ok())
        .collect()
}

fn metrics(training: SupervisedTraining<Net>) -> SupervisedTraining<Net> {
    training.metrics((AccuracyMetric::new(), LossMetric::new()))
}

/// Trains a pipeline, and returns the result of burn-train.
fn train(
    pipeline: Pipeline<Net, Points>,
    dir: &Path,
    strategy: impl FnOnce(PipelineStrategy<Net, Points>) -> PipelineStrategy<Net, Points>,
    setup: impl FnOnce(SupervisedTraining<Net>) -> SupervisedTraining<Net>,
) -> LearningResult<Net> {
    let (learner, of_pipeline) = learner(pipeline, scheduler());
    let strategy = strategy(of_pipeline);
    let training = setup(metrics(training(dir)));
    training
        .with_training_strategy(strategy.into())
        .launch(learner)
}

/// Parameters, running states, losses and accuracies are the same as in burn-train on one device.
#[test]
fn a_pipeline_trains_as_burn_train_does() {
    let plain_dir = tempfile::tempdir().unwrap();
    let device = Device::flex().autodiff();
    let model = pipeline(1, 1).gather(&device).unwrap();
    let plain = metrics(training(plain_dir.path()))
        .with_training_strategy(ExecutionStrategy::single(device).into())
        .launch(Learner::new(model, optimizer().init(), scheduler()));
    assert!(plain.error.is_none());
    for stages in 1..=3 {
        let dir = tempfile::tempdir().unwrap();
        let found = train(pipeline(stages, 1), dir.path(), |s| s, |t| t.summary());
        assert!(found.error.is_none(), "{:?}", found.error);
        assert!(bits(&found.model) == bits(&plain.model), "{stages} stages");
        for (split, name) in [("train", "Loss"), ("valid", "Loss"), ("valid", "Accuracy")] {
            let [found, expected] = [dir.path(), plain_dir.path()].map(|dir| log(dir, split, name));
            assert!(expected.len() > EPOCHS, "{expected:?}");
            assert_eq!(found, expected, "{split} {name}");
        }
    }
}

/// Trains a pipeline, and interrupts it when a number of batches are read, those for validation included.
fn interrupted(
    pipeline: Pipeline<Net, Points>,
    dir: &Path,
    saves: Checkpoints,
    batches: usize,
) -> LearningResult<Net> {
    let interrupter = Interrupter::new();
    let (stop, read) = (interrupter.clone(), AtomicUsize::new(0));
    let (learner, strategy) = learner_with(pipeline, scheduler(), move |points| {
        if read.fetch_add(1, Ordering::Relaxed) + 1 == batches {
            stop.stop(Some("a test"));
        }
        points
    });
    let strategy = strategy.checkpoints(saves);
    let run = metrics(training(dir))
        .with_interrupter(interrupter)
        .with_training_strategy(strategy.into())
        .launch(learner);
    assert!(run.error.is_none(), "{:?}", run.error);
    assert_eq!(run.interrupted.is_some(), batches < usize::MAX);
    run
}

/// A run that is interrupted in training and in validation, and resumed with another number of stages, ends as a run without
/// interruption. An epoch is six batches for training and three for validation.
#[test]
fn a_run_is_resumed_within_an_epoch() {
    for every in [None, Some(1), Some(4)] {
        let whole = tempfile::tempdir().unwrap();
        let expected = train(pipeline(2, 2), whole.path(), |s| s, |t| t);
        let dir = tempfile::tempdir().unwrap();
        let runs = [(2, 3), (1, 5), (2, 8), (3, usize::MAX)].map(|(stages, batches)| {
            let saves = Checkpoints::open(dir.path().join("steps")).unwrap();
            let saves = saves.keep(Retention::newest(2));
            let saves = match every {
                Some(steps) => saves.every(steps),
                None => saves,
            };
            interrupted(pipeline(stages, 2), dir.path(), saves, batches)
        });
        let [.., last] = runs;
        assert!(bits(&last.model) == bits(&expected.model), "{every:?}");
    }
}

/// A signal interrupts the training after a step, or the validation after a batch, and the step is saved: the run ends as a run
/// without interruption.
#[cfg(unix)]
#[test]
fn a_signal_interrupts_and_saves() {
    use tinderbox_train::{EndSignal, EndSignals};

    let whole = tempfile::tempdir().unwrap();
    let expected = train(pipeline(2, 2), whole.path(), |s| s, |t| t);
    let dir = tempfile::tempdir().unwrap();
    // Batches that are read until the signal arrives, and the steps of the run after it.
    let runs = [(2, Some(2)), (6, Some(6)), (usize::MAX, None)].map(|(batches, step)| {
        let read = AtomicUsize::new(0);
        let (learner, strategy) = learner_with(pipeline(2, 2), scheduler(), move |points| {
            if read.fetch_add(1, Ordering::Relaxed) + 1 == batches {
                signal_hook::low_level::raise(signal_hook::consts::SIGUSR2).unwrap();
            }
            points
        });
        let saves = Checkpoints::open(dir.path().join("steps")).unwrap();
        let signals = EndSignals::listen([EndSignal::Usr2]).unwrap();
        let strategy = strategy.checkpoints(saves).end_on(signals);
        let run = metrics(training(dir.path()))
            .with_training_strategy(strategy.into())
            .launch(learner);
        assert!(run.error.is_none(), "{:?}", run.error);
        let reason = run.interrupted.as_ref().map(|end| end.reason.as_deref());
        assert_eq!(reason, step.map(|_| Some("USR2")));
        let saves = Checkpoints::open(dir.path().join("steps")).unwrap();
        if let Some(step) = step {
            assert_eq!(saves.latest().unwrap().unwrap().step(), step);
        }
        run
    });
    let [.., last] = runs;
    assert!(bits(&last.model) == bits(&expected.model));
}

/// A run that was interrupted before its validation is validated when it is resumed, also after the last epoch.
#[test]
fn an_epoch_is_validated_after_a_resume() {
    let dir = tempfile::tempdir().unwrap();
    let saves = || Checkpoints::open(dir.path().join("steps")).unwrap();
    // The last batch for training of the last epoch.
    let last = 9 * (EPOCHS - 1) + 6;
    interrupted(pipeline(2, 2), dir.path(), saves(), last);
    assert_eq!(log(dir.path(), "valid", "Loss").len(), 3 * (EPOCHS - 1));
    interrupted(pipeline(2, 2), dir.path(), saves(), usize::MAX);
    let whole = tempfile::tempdir().unwrap();
    train(pipeline(2, 2), whole.path(), |s| s, |t| t);
    let [found, expected] = [dir.path(), whole.path()].map(|dir| log(dir, "valid", "Loss"));
    let tail = |losses: &[f64]| losses[losses.len() - 3..].to_vec();
    assert_eq!(tail(&found), tail(&expected));
}

/// A pipeline that was trained before begins with the first rate, and its checkpoints can't be continued.
#[test]
fn another_loop_is_not_continued() {
    let dir = tempfile::tempdir().unwrap();
    let saves = || Checkpoints::open(dir.path().join("steps")).unwrap();
    let mut before = pipeline(2, 2);
    let batch = train_loader().iter().next().unwrap().unwrap();
    before.step(0.1, batch).unwrap();
    before.resume_at(20);
    saves().save(&mut before, 20).unwrap();
    let (learner, strategy) = learner(before, scheduler());
    let rate = burn_train::metric::LearningRateMetric::new();
    let trained = training(dir.path())
        .metric_train_numeric(rate)
        .num_epochs(1)
        .with_training_strategy(strategy.into())
        .launch(learner);
    assert!(trained.error.is_none(), "{:?}", trained.error);
    let mut expected = scheduler();
    let expected: Vec<f64> = (0..6).map(|_| expected.step().base()).collect();
    assert_eq!(log(dir.path(), "train", "Learning Rate"), expected);
    let continued = train(
        pipeline(2, 2),
        dir.path(),
        |s| s.checkpoints(saves()),
        |t| t,
    );
    let text = continued.error.unwrap().to_string();
    let text = text.replace(&*dir.path().to_string_lossy(), "DIR");
    insta::assert_snapshot!(text, @"training worker on device 0 failed: DIR/steps/step-00000020 was saved by another training loop, and its position in the data may be in another unit: continue with that loop, or save to another directory");
}

/// The steps before an item that can't be read are saved, and the run continues when the item can be read.
#[test]
fn an_error_of_the_data_loses_nothing() {
    let whole = tempfile::tempdir().unwrap();
    let expected = train(pipeline(2, 2), whole.path(), |s| s, |t| t).model;
    let dir = tempfile::tempdir().unwrap();
    let saves = || Checkpoints::open(dir.path().join("steps")).unwrap();
    let stopped = train(
        pipeline(2, 2),
        dir.path(),
        |s| s.checkpoints(saves()),
        |_| metrics(support::damaged(dir.path())),
    );
    let error = stopped.error.unwrap();
    assert!(matches!(*error, TrainingError::Dataset(_)), "{error}");
    let steps = saves().latest().unwrap().map(|saved| saved.step());
    assert!(steps.is_some_and(|steps| steps > 0), "{steps:?}");
    let continued = train(
        pipeline(1, 2),
        dir.path(),
        |s| s.checkpoints(saves()),
        |t| t,
    );
    assert!(bits(&continued.model) == bits(&expected));
}

/// A run that has ended is not trained further.
#[test]
fn a_run_that_has_ended_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let saves = || Checkpoints::open(dir.path().join("steps")).unwrap();
    let runs = [1, 2].map(|stages| {
        let run = train(
            pipeline(stages, 2),
            dir.path(),
            |s| s.checkpoints(saves()),
            |t| t,
        );
        assert!(run.error.is_none(), "{:?}", run.error);
        bits(&run.model)
    });
    assert!(runs[0] == runs[1]);
}

#[test]
fn accumulated_batches_are_one_step() {
    let dir = tempfile::tempdir().unwrap();
    let (learner, strategy) = learner(pipeline(2, 2), scheduler());
    let trained = training(dir.path())
        .metrics((LossMetric::new(),))
        .grads_accumulation(2)
        .with_training_strategy(strategy.clone().into())
        .launch(learner);
    assert!(trained.error.is_none(), "{:?}", trained.error);
    // 22 items are six batches of four, so three steps.
    assert_eq!(strategy.pipeline().steps(), 3 * EPOCHS as u64);
    // A metric has a value for each batch, as in burn-train.
    assert_eq!(log(dir.path(), "train", "Loss").len(), 6 * EPOCHS);
}

/// burn-train stops a pipeline that does not improve after as many steps as a training on one device.
#[test]
fn early_stopping() {
    let stopping = |dir: &Path| {
        let stop = MetricEarlyStoppingStrategy::new(
            &LossMetric::new(),
            Aggregate::Mean,
            // The opposite of what training does.
            Direction::Highest,
            Split::Train,
            StoppingCondition::NoImprovementSince { n_epochs: 1 },
        );
        let training = metrics(training(dir)).early_stopping(stop);
        training.num_epochs(20)
    };
    let [dir, plain_dir] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (learner, strategy) = learner(pipeline(2, 1), scheduler());
    let trained = stopping(dir.path())
        .with_training_strategy(strategy.into())
        .launch(learner);
    assert!(trained.error.is_none(), "{:?}", trained.error);
    let device = Device::flex().autodiff();
    let model = pipeline(1, 1).gather(&device).unwrap();
    let plain = stopping(plain_dir.path())
        .with_training_strategy(ExecutionStrategy::single(device).into())
        .launch(Learner::new(model, optimizer().init(), scheduler()));
    assert!(plain.error.is_none());
    let [losses, expected] = [&dir, &plain_dir].map(|dir| log(dir.path(), "train", "Loss"));
    assert_eq!(losses, expected);
    assert!(losses.len() < 6 * 20, "{}", losses.len());
}

/// Each metric has the value of every step, and burn-train logs it.
#[test]
fn metrics_of_steps() {
    let dir = tempfile::tempdir().unwrap();
    let (learner, strategy) = learner(pipeline(2, 2), scheduler());
    let metric = |of: fn(&PipelineStrategy<Net, Points>) -> StepMetric| of(&strategy);
    let trained = training(dir.path())
        .metrics((LossMetric::new(),))
        .metric_train_numeric(metric(PipelineStrategy::gradient_norm))
        // A validation has none.
        .metric_valid_numeric(metric(PipelineStrategy::gradient_norm))
        .metric_train_numeric(metric(PipelineStrategy::idle_share))
        .metric_train_numeric(metric(PipelineStrategy::held_bytes))
        .metric_train_numeric(metric(PipelineStrategy::flop_utilization))
        .with_training_strategy(strategy.clone().into())
        .launch(learner);
    assert!(trained.error.is_none(), "{:?}", trained.error);

    // The same steps without burn-train, with a loader for a device, which has another order.
    let mut alone = pipeline(2, 2);
    let mut scheduler = scheduler();
    let mut train = tinderbox_train::Epochs::new(train_loader().to_device(&Device::flex()));
    let mut norms = Vec::new();
    for _ in 0..EPOCHS {
        for batch in train.next_epoch().unwrap() {
            let rate = scheduler.step();
            let step = alone.step(rate, batch.unwrap()).unwrap();
            norms.push(step.gradient_norm.unwrap());
        }
    }
    assert_eq!(log(dir.path(), "train", "Gradient Norm"), norms);
    let idle = log(dir.path(), "train", "Idle Share");
    assert_eq!(idle.len(), norms.len());
    assert!(
        idle.iter().all(|share| (0.0..100.0).contains(share)),
        "{idle:?}"
    );
    let held = log(dir.path(), "train", "Held Bytes");
    assert!(held.iter().all(|mib| *mib > 0.0), "{held:?}");
    assert!(!dir.path().join("valid/epoch-1/Gradient_Norm.log").exists());
    // The machine is not calibrated.
    assert!(
        !dir.path()
            .join("train/epoch-1/FLOP_Utilization.log")
            .exists()
    );
}

/// The utilization follows from the operations of the plan, the rate of the machine and the time of each step.
#[test]
fn flop_utilization_of_a_calibrated_machine() {
    const FLOPS_PER_S: u64 = 1_000_000_007;
    const MICRO_BATCHES: usize = 2;
    let mut machine = Machine::local(2).unwrap();
    machine.rates.flops_per_s = FLOPS_PER_S;
    let pipeline = start_on(&machine, MICRO_BATCHES, SEED, |net, batch| {
        net.classify(batch).into_outputs()
    });
    let stages = pipeline.plan().stages.iter();
    let flops: u64 = stages.map(|s| s.forward_flops + s.backward_flops).sum();
    assert!(flops > 0);
    let dir = tempfile::tempdir().unwrap();
    let (learner, strategy) = learner(pipeline, scheduler());
    let started = Instant::now();
    let trained = training(dir.path())
        .metrics((LossMetric::new(),))
        .metric_train_numeric(strategy.flop_utilization())
        .with_training_strategy(strategy.clone().into())
        .launch(learner);
    let whole = started.elapsed().as_secs_f64();
    assert!(trained.error.is_none(), "{:?}", trained.error);
    let logged = log(dir.path(), "train", "FLOP Utilization");
    assert_eq!(
        logged.len() as u64,
        strategy.pipeline().steps(),
        "{logged:?}"
    );
    let of_ranks = 2.0 * FLOPS_PER_S as f64;
    let of_step = (MICRO_BATCHES as u64 * flops) as f64;
    let seconds = logged
        .iter()
        .map(|percent| of_step / (percent / 100.0 * of_ranks));
    let seconds: f64 = seconds.sum();
    assert!(0.0 < seconds && seconds < whole, "{seconds} of {whole} s");
}

/// A model whose batch is of a type that is not a `Batch`.
#[derive(Module, Debug)]
struct OfPairs {
    net: Net,
}

#[derive(Clone, Debug)]
struct Pair(Points);

impl TrainStep for OfPairs {
    type Input = Pair;
    type Output = ClassificationOutput;

    fn step(&self, batch: Pair) -> TrainOutput<ClassificationOutput> {
        TrainStep::step(&self.net, batch.0)
    }
}

impl InferenceStep for OfPairs {
    type Input = Pair;
    type Output = ClassificationOutput;

    fn step(&self, batch: Pair) -> ClassificationOutput {
        InferenceStep::step(&self.net, batch.0)
    }
}

struct Pairs(support::Loader);

struct PairIterator<'a>(Box<dyn DataLoaderIterator<Points> + 'a>);

impl Iterator for PairIterator<'_> {
    type Item = Result<Pair, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map(Pair))
    }
}

impl DataLoaderIterator<Pair> for PairIterator<'_> {
    fn progress(&self) -> Progress {
        self.0.progress()
    }
}

impl DataLoader<Pair> for Pairs {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Pair> + 'a> {
        Box::new(PairIterator(self.0.iter()))
    }

    fn num_items(&self) -> usize {
        self.0.num_items()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<Pair>> {
        Arc::new(Self(self.0.to_device(device)))
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<Pair>> {
        Arc::new(Self(self.0.slice(start, end)))
    }
}

/// Batches of another type are converted, also from a custom data loader.
#[test]
fn batches_are_converted() {
    let dir = tempfile::tempdir().unwrap();
    let expected = train(pipeline(2, 2), dir.path(), |s| s, |t| t).model;
    let model = Deferred::new(|device| OfPairs {
        net: Net::new(device),
    });
    let model = model.unwrap();
    let example = train_loader().iter().next().unwrap().unwrap();
    let trace = model.trace(&example, 2, |model: &OfPairs, batch| {
        model.net.classify(batch).into_outputs()
    });
    let trace = trace.unwrap();
    let plan = Planner::new(&trace, &Machine::local(2).unwrap());
    let pipeline = Pipeline::builder(&model, &trace, &plan.plan().unwrap())
        .optimizer(optimizer())
        .seed(SEED)
        // The parameters have other paths, and so another initialization.
        .source(support::initial())
        .start()
        .unwrap();
    let (learner, strategy) = learner_with(pipeline, scheduler(), |pair: Pair| pair.0);
    let loader = || Arc::new(Pairs(train_loader()));
    let trained = SupervisedTraining::new(dir.path(), loader(), loader())
        .num_epochs(EPOCHS)
        .with_application_logger(None)
        .renderer(Box::new(CliMetricsRenderer::new()))
        .with_training_strategy(strategy.into())
        .launch(learner);
    assert!(trained.error.is_none(), "{:?}", trained.error);
    assert!(bits(&trained.model.net) == bits(&expected));
}

/// The parameters of a model that does not fit one device stay on the ranks.
#[test]
fn a_model_may_stay_on_the_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let (learner, strategy) = learner(pipeline(2, 1), scheduler());
    let strategy = strategy.without_gather();
    let trained = metrics(training(dir.path()))
        .with_training_strategy(strategy.clone().into())
        .launch(learner);
    assert!(trained.error.is_none(), "{:?}", trained.error);
    assert_eq!(
        trained.model.num_params(),
        Net::new(&Device::flex()).num_params()
    );
    strategy.pipeline().gather(&Device::flex()).unwrap();
}

#[test]
fn errors() {
    let text = |trained: LearningResult<Net>| trained.error.unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let checkpointers = train(
        pipeline(2, 1),
        dir.path(),
        |s| s,
        |t| t.with_default_checkpointers(),
    );
    insta::assert_snapshot!(text(checkpointers), @"training worker on device 0 failed: checkpointers of burn-train save a whole model, but each rank has a part of it: leave out `with_default_checkpointers` and `checkpoint`, and set `checkpoints` of the strategy");
    // A run of another seed.
    let saves = || Checkpoints::open(dir.path().join("steps")).unwrap();
    train(
        pipeline(1, 1),
        dir.path(),
        |s| s.checkpoints(saves()),
        |t| t,
    );
    let other = start(1, 1, 8, |net, batch| net.classify(batch).into_outputs());
    let resumed = train(other, dir.path(), |s| s.checkpoints(saves()), |t| t);
    insta::assert_snapshot!(text(resumed).replace(&*dir.path().to_string_lossy(), "DIR"), @"training worker on device 0 failed: the run can't be saved or resumed: the checkpoint was saved with seed 7, the pipeline was started with 8: start it with `.seed(7)`, otherwise dropout differs");
    let (learner, strategy) = learner(pipeline(1, 1), scheduler());
    let strategy = strategy.checkpoints(saves());
    let smaller = SupervisedTraining::new(dir.path(), train_loader().slice(0, 20), train_loader())
        .num_epochs(EPOCHS + 1)
        .with_training_strategy(strategy.into())
        .launch(learner);
    insta::assert_snapshot!(text(smaller), @"training worker on device 0 failed: the data loader has 20 items, and the data loader of the resumed run had 22: an epoch would not continue where it was interrupted");
    let alone = start(1, 1, SEED, |net, batch| {
        Outputs::loss(net.classify(batch).loss)
    });
    let no_outputs = train(alone, dir.path(), |s| s, |t| t);
    insta::assert_snapshot!(text(no_outputs), @"training worker on device 0 failed: the outputs of the forward do not fit the item of the metrics: the forward has no output `output`; it has none: name them with `Outputs::with`");
}
