//! Directories in which streamed models are trained: what is there after a failure, and what may continue with it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::module::{Module, ParamGroup};
use burn::optim::lr_scheduler::LrSchedulerConfig;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLrSchedulerConfig;
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor};
use tinderbox::checkpoint::LoadOptions;
use tinderbox::deferred::Request;
use tinderbox::error::{PipelineError, StateError, StreamedError};
use tinderbox::pipeline::{
    SavedOptimizer, StageStore, StreamedBuilder, StreamedTraining, UpdatedStage,
};
use tinderbox::{
    Checkpoints, Deferred, Pipeline, Plan, Source, Streamed, Trace, Traceable, WorkingDir,
};

use crate::streamed_training::{FINE, Normed, SEED, STEPS, batch, forward, normed, working_dir};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// A model with its trace and plan.
struct Case {
    model: Deferred<Normed>,
    traced: Trace<Tensor<2>>,
    plan: Plan,
}

impl Case {
    fn of(model: Deferred<Normed>) -> Self {
        let traced = model.trace(&batch(0), 1, forward).unwrap();
        let plan = traced.plan_streamed(FINE).unwrap();
        Self {
            model,
            traced,
            plan,
        }
    }

    fn builder(&self, store: impl StageStore + 'static) -> StreamedBuilder<Normed, Tensor<2>> {
        let builder = Streamed::builder(&self.model, &self.traced, &self.plan).seed(SEED);
        builder.store(store)
    }

    fn start(&self, store: impl StageStore + 'static) -> Streamed<Normed, Tensor<2>> {
        let builder = self.builder(store).optimizer(AdamWConfig::new());
        builder.start().unwrap()
    }

    fn pipeline(&self) -> Pipeline<Normed, Tensor<2>> {
        let whole = self.traced.plan_at(&[]).unwrap();
        let builder = Pipeline::builder(&self.model, &self.traced, &whole).seed(SEED);
        builder.optimizer(AdamWConfig::new()).start().unwrap()
    }
}

/// The model, with layers that are not trained.
fn frozen() -> Deferred<Normed> {
    let frozen = Deferred::new(|device: &Device| {
        let mut net = normed().construct(device);
        net.layers = net.layers.into_iter().map(Module::no_grad).collect();
        net
    });
    frozen.unwrap()
}

/// Why the store can't be the beginning.
fn refused(started: Result<Streamed<Normed, Tensor<2>>, PipelineError>) -> String {
    match started.map(drop) {
        Err(PipelineError::Streamed(StreamedError::Store { source })) => source.to_string(),
        other => panic!("it is not refused: {other:?}"),
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// A store that fails at a write or a commit, as a process that is killed.
struct Failing {
    inner: WorkingDir,
    left: Arc<AtomicU64>,
}

impl Failing {
    fn pass(&self) -> Result<(), Failed> {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        match left {
            0 => Err("the disk is gone".into()),
            _ => Ok(()),
        }
    }
}

impl StageStore for Failing {
    fn start(&self, training: &StreamedTraining<'_>) -> Result<(), Failed> {
        self.inner.start(training)
    }

    fn step(&self) -> u64 {
        self.inner.step()
    }

    fn working_bytes(&self, requests: &[Request]) -> u64 {
        self.inner.working_bytes(requests)
    }

    fn source(&self) -> Arc<dyn Source> {
        self.inner.source()
    }

    fn optimizer(&self) -> Option<Arc<dyn SavedOptimizer>> {
        self.inner.optimizer()
    }

    fn write(&self, step: u64, updated: UpdatedStage) -> Result<(), Failed> {
        self.pass()?;
        self.inner.write(step, updated)
    }

    fn commit(&self, step: u64) -> Result<(), Failed> {
        self.pass()?;
        self.inner.commit(step)
    }
}

/// Whatever fails, the directory has the last whole step, and training continues from there with the same bits.
#[test]
fn a_step_is_whole_or_it_is_not_there() {
    let case = Case::of(normed());
    let mut pipeline = case.pipeline();
    let expected = (0..STEPS).map(|step| pipeline.step(0.01, batch(step)).unwrap().loss.to_bits());
    let expected: Vec<u64> = expected.collect();
    let start = |store: Failing| case.start(store);
    // Of a step: the writes of all stages that train, and the commit.
    for fails_after in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let left = Arc::new(AtomicU64::new(fails_after));
        let kept = working_dir(&case.model, dir.path());
        let mut streamed = start(Failing {
            inner: kept.clone(),
            left: left.clone(),
        });
        let mut failed = None;
        for step in 0..STEPS {
            match streamed.step(0.01, batch(step)) {
                Ok(output) => assert_eq!(output.loss.to_bits(), expected[step as usize]),
                Err(error) => {
                    failed = Some((step, error));
                    break;
                }
            }
        }
        if failed.is_some() {
            // What is in memory is of no committed step.
            assert!(streamed.step(0.01, batch(0)).is_err());
        }
        drop(streamed);
        let Some((step, error)) = failed else {
            assert!(fails_after > 6, "{fails_after} failures");
            break;
        };
        let mut text = error.to_string();
        let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(&error);
        while let Some(next) = cause {
            text = format!("{text}: {next}");
            cause = next.source();
        }
        assert!(text.contains("the disk is gone"), "{text}");
        // Another one, or the same in a process that continues.
        let store = match fails_after % 2 {
            0 => {
                drop(kept);
                working_dir(&case.model, dir.path())
            }
            _ => kept,
        };
        assert_eq!(store.step(), step, "{text}");
        let never = Arc::new(AtomicU64::new(u64::MAX));
        let mut streamed = start(Failing {
            inner: store,
            left: never,
        });
        assert_eq!(streamed.steps(), step);
        for step in step..STEPS {
            let output = streamed.step(0.01, batch(step)).unwrap();
            assert_eq!(output.loss.to_bits(), expected[step as usize]);
        }
        assert_eq!(names(dir.path()), ["step-00000002", "step-00000003"]);
    }
}

/// What can't be the beginning is refused before anything is read.
#[test]
fn another_run_is_refused() {
    let case = Case::of(normed());
    let dir = tempfile::tempdir().unwrap();
    let start = || case.builder(working_dir(&case.model, dir.path()));
    let mut adam = start().optimizer(AdamWConfig::new()).start().unwrap();
    adam.step(0.01, batch(0)).unwrap();
    drop(adam);

    let other = start().optimizer(SgdConfig::new()).start();
    let message = refused(other);
    assert!(
        message.contains("`optimizer` was `AdamWConfig"),
        "{message}"
    );
    let changing = working_dir(&case.model, dir.path()).allow_changes(["optimizer"]);
    let sgd = case.builder(changing).optimizer(SgdConfig::new());
    let error = sgd.start().map(drop);
    let Err(PipelineError::State(StateError::Restore { source, .. })) = error else {
        panic!("{error:?}");
    };
    assert!(source.to_string().contains("optimizer"), "{source}");
    let other = start().optimizer(AdamWConfig::new()).seed(8).start();
    let message = refused(other);
    assert!(message.contains(&format!("`.seed({SEED})`")), "{message}");
    start().optimizer(AdamWConfig::new()).start().unwrap();
}

/// Each stage saves the rates of its own parameters.
#[test]
fn learning_rates_of_all_stages_are_saved() {
    let case = Case::of(normed());
    let dir = tempfile::tempdir().unwrap();
    let rates = || {
        ModuleLrSchedulerConfig::new(LrSchedulerConfig::Constant(0.01))
            .with_group(
                ParamGroup::from_predicate("bias"),
                LrSchedulerConfig::Constant(0.02),
            )
            .init()
            .unwrap()
            .step()
    };
    let mut streamed = case.start(working_dir(&case.model, dir.path()));
    streamed.step(rates(), batch(0)).unwrap();
    let mut pipeline = case.pipeline();
    pipeline.step(rates(), batch(0)).unwrap();
    let expected = pipeline.last_learning_rates().unwrap();
    assert_eq!(expected.base, 0.01);
    assert!(expected.others.len() > 2, "{expected:?}");
    let found = working_dir(&case.model, dir.path()).learning_rates();
    assert_eq!(found, Some(expected));
}

#[test]
fn an_optimizer_with_state_does_not_go_on_without_one() {
    let case = Case::of(normed());
    let dir = tempfile::tempdir().unwrap();
    let start = || case.builder(working_dir(&case.model, dir.path()));
    let mut plain = start().optimizer(SgdConfig::new()).start().unwrap();
    plain.step(0.01, batch(0)).unwrap();
    drop(plain);
    let message = refused(start().optimizer(AdamWConfig::new()).start());
    assert!(message.contains("no optimizer state"), "{message}");
}

/// The trained values of parameters that are frozen later are not lost: the error names what to do, and it can be done.
#[test]
fn parameters_that_are_no_longer_trained() {
    let all = Case::of(normed());
    let dir = tempfile::tempdir().unwrap();
    let mut streamed = all.start(working_dir(&all.model, &dir.path().join("all")));
    streamed.step(0.01, batch(0)).unwrap();
    drop(streamed);

    let case = Case::of(frozen());
    let store = working_dir(&case.model, &dir.path().join("all"));
    let saved = store.checkpoint().unwrap();
    let builder = case.builder(store).optimizer(AdamWConfig::new());
    let message = refused(builder.start());
    assert!(
        message.contains("such as `layers.0.bias` (6 in all)"),
        "{message}"
    );

    let source = saved.source(LoadOptions::default()).unwrap();
    let store = WorkingDir::open(dir.path().join("rest"), &case.model, source).unwrap();
    let mut streamed = case.start(store);
    let whole = case.traced.plan_at(&[]).unwrap();
    let source = saved.source(LoadOptions::default()).unwrap();
    let builder = Pipeline::builder(&case.model, &case.traced, &whole).source(source);
    let builder = builder.seed(SEED).optimizer(AdamWConfig::new());
    let mut pipeline = builder.start().unwrap();
    for step in 0..STEPS {
        let expected = pipeline.step(0.01, batch(step)).unwrap();
        let found = streamed.step(0.01, batch(step)).unwrap();
        assert_eq!(found.loss.to_bits(), expected.loss.to_bits(), "step {step}");
    }
}

/// Checkpoints that were there stay, and training continues from the newest of them with the same bits.
#[test]
fn checkpoints_of_a_pipeline_stay() {
    let case = Case::of(normed());
    let dir = tempfile::tempdir().unwrap();
    let mut pipeline = case.pipeline();
    let checkpoints = Checkpoints::open(dir.path()).unwrap();
    for step in 0..STEPS {
        pipeline.step(0.01, batch(step)).unwrap();
        checkpoints.save(&mut pipeline, 0).unwrap();
    }
    for restart in 0..2 {
        let mut streamed = case.start(working_dir(&case.model, dir.path()));
        assert_eq!(streamed.steps(), (1 + restart) * STEPS);
        for _ in 0..STEPS {
            let step = streamed.steps();
            let expected = pipeline.step(0.01, batch(step)).unwrap().loss;
            let found = streamed.step(0.01, batch(step)).unwrap().loss;
            assert_eq!(found.to_bits(), expected.to_bits(), "step {step}");
        }
        let last = (2 + restart) * STEPS;
        let expected = [1, 2, 3, last - 1, last];
        let expected = expected.map(|step| format!("step-{step:08}"));
        assert_eq!(names(dir.path()), expected);
    }
}

/// The step of another process is not replaced.
#[test]
fn two_processes_in_one_directory() {
    let case = Case::of(normed());
    let dir = tempfile::tempdir().unwrap();
    let mut one = case.start(working_dir(&case.model, dir.path()));
    let mut other = case.start(working_dir(&case.model, dir.path()));
    one.step(0.01, batch(0)).unwrap();
    let message = other.step(0.01, batch(1)).map(drop).unwrap_err();
    let message = tinderbox::world::with_causes(&message);
    assert!(message.contains("step-00000001"), "{message}");
    assert!(message.contains("exists"), "{message}");
    one.step(0.01, batch(1)).unwrap();
    drop(other);
    assert_eq!(names(dir.path()), ["step-00000001", "step-00000002"]);
}
