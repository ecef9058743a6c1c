//! Pipelines under burn-train, compared with burn-train's own training on one device.

mod support;

use std::path::Path;

use burn::module::Module;
use burn::tensor::Device;
use burn_train::metric::store::{Aggregate, Direction, Split};
use burn_train::metric::{AccuracyMetric, LossMetric};
use burn_train::{
    ExecutionStrategy, Learner, LearningResult, MetricEarlyStoppingStrategy, StoppingCondition,
    SupervisedTraining,
};
use tinderbox::{Checkpoints, Outputs, Pipeline};
use tinderbox_train::{PipelineStrategy, StepItem, StepMetric, learner};

use support::{
    EPOCHS, Net, Points, SEED, StopAt, bits, optimizer, pipeline, scheduler, start, training,
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
    // A line is the value of a step, its number of items, and "final" for that of an epoch.
    let steps = lines.filter(|line| !line.contains("final"));
    steps
        .filter_map(|line| line.split(',').next()?.parse().ok())
        .collect()
}

fn metrics(training: SupervisedTraining<Net>) -> SupervisedTraining<Net> {
    training.metrics((AccuracyMetric::new(), LossMetric::new()))
}

/// Trains a pipeline; returns what burn-train does, and the strategy.
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

/// Parameters, running states, losses and accuracies are those of burn-train on one device.
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

/// Interrupted within an epoch and resumed with another number of stages, twice, a run ends as one that was not
/// interrupted.
#[test]
fn a_run_is_resumed_within_an_epoch() {
    for every in [0, 1, 4] {
        let whole = tempfile::tempdir().unwrap();
        let expected = train(pipeline(2, 2), whole.path(), |s| s, |t| t);
        let dir = tempfile::tempdir().unwrap();
        let mut finished = None;
        for (stages, stop) in [(2, 3), (1, 8), (3, usize::MAX)] {
            let saves = Checkpoints::open(dir.path().join("steps")).unwrap();
            let saves = saves.every(every).keep(2, None);
            let run = train(
                pipeline(stages, 2),
                dir.path(),
                |s| s.checkpoints(saves),
                |training| {
                    let interrupter = training.interrupter();
                    training.metric_train(StopAt {
                        step: stop,
                        interrupter,
                        updates: Default::default(),
                    })
                },
            );
            assert!(run.error.is_none(), "{:?}", run.error);
            assert_eq!(run.interrupted.is_some(), stop < usize::MAX);
            finished = Some(run.model);
        }
        assert!(bits(&finished.unwrap()) == bits(&expected.model), "{every}");
    }
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
    assert_eq!(strategy.pipeline().unwrap().steps(), 3 * EPOCHS as u64);
    assert_eq!(log(dir.path(), "train", "Loss").len(), 3 * EPOCHS);
}

/// burn-train's strategy stops a training that does not improve.
#[test]
fn early_stopping() {
    let dir = tempfile::tempdir().unwrap();
    let (learner, strategy) = learner(pipeline(2, 1), scheduler());
    let stop = MetricEarlyStoppingStrategy::new(
        &LossMetric::new(),
        Aggregate::Mean,
        // The opposite of what training does.
        Direction::Highest,
        Split::Train,
        StoppingCondition::NoImprovementSince { n_epochs: 1 },
    );
    let trained = metrics(training(dir.path()))
        .early_stopping(stop)
        .num_epochs(20)
        .with_training_strategy(strategy.clone().into())
        .launch(learner);
    assert!(trained.error.is_none(), "{:?}", trained.error);
    let steps = strategy.pipeline().unwrap().steps();
    assert!((6..60).contains(&steps), "{steps}");
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
        .metric_train_numeric(metric(PipelineStrategy::idle_share))
        .metric_train_numeric(metric(PipelineStrategy::held_bytes))
        .metric_train_numeric(metric(PipelineStrategy::flop_utilization))
        .with_training_strategy(strategy.clone().into())
        .launch(learner);
    assert!(trained.error.is_none(), "{:?}", trained.error);

    // The same steps without burn-train, which gives the loader a device, and so another order.
    let mut alone = pipeline(2, 2);
    let mut scheduler = scheduler();
    let mut train =
        tinderbox_train::Epochs::new(support::train_loader().to_device(&Device::flex()));
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
    // The machine is not calibrated.
    assert!(
        !dir.path()
            .join("train/epoch-1/FLOP_Utilization.log")
            .exists()
    );
}

/// The parameters of a model that does not fit one device stay where they are.
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
    strategy
        .pipeline()
        .unwrap()
        .gather(&Device::flex())
        .unwrap();
}

#[test]
fn what_fails_is_told() {
    let text = |trained: LearningResult<Net>| trained.error.unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let checkpointers = train(
        pipeline(2, 1),
        dir.path(),
        |s| s,
        |t| t.with_default_checkpointers(),
    );
    insta::assert_snapshot!(text(checkpointers), @"training worker on device 0 failed: checkpointers of burn-train save a whole model, of which the ranks have parts: leave out `with_default_checkpointers` and `checkpoint`, and give the strategy `checkpoints`");
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
    let alone = start(1, 1, SEED, |net, batch| {
        Outputs::loss(net.classify(batch).loss)
    });
    let no_outputs = train(alone, dir.path(), |s| s, |t| t);
    insta::assert_snapshot!(text(no_outputs), @"training worker on device 0 failed: the outputs of the forward do not fit the item that the metrics get: the forward has no output `output`; it has none: name them with `Outputs::with`");
}
