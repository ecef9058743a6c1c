//! Training with less memory than a model needs, compared with a pipeline that holds everything, bit for bit.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor};
use tinderbox::random::Seed;
use tinderbox::tools::diff;
use tinderbox::{
    Checkpoint, Checkpoints, Clipping, Deferred, MemoryBudget, Outputs, Pipeline, PipelineBuilder,
    PipelineError, Plan, SavedOptimizer, Source, StageStore, Streamed, StreamedBuilder,
    StreamedError, Trace, Traceable, UpdatedStage, WorkingDir,
};

use crate::models::{Case, LanguageModel, Mlp, Tied, UNet, deferred, floats, trace};

/// Stages of one block each.
const FINE: MemoryBudget = MemoryBudget::Values(16);
const SEED: u64 = 7;
const STEPS: u64 = 3;

/// What is set alike for both.
trait Settings<M, B> {
    fn of_pipeline(&self, builder: PipelineBuilder<M, B>) -> PipelineBuilder<M, B>;
    fn of_streamed(&self, builder: StreamedBuilder<M, B>) -> StreamedBuilder<M, B>;
}

/// AdamW.
struct Adam;

impl<M: Module + Sync + 'static, B: tinderbox::Batch> Settings<M, B> for Adam {
    fn of_pipeline(&self, builder: PipelineBuilder<M, B>) -> PipelineBuilder<M, B> {
        builder.optimizer(AdamWConfig::new())
    }

    fn of_streamed(&self, builder: StreamedBuilder<M, B>) -> StreamedBuilder<M, B> {
        builder.optimizer(AdamWConfig::new())
    }
}

/// Trains with every limit from the least to one in which all fits; compares losses, parameters, running states and the state of
/// the optimizer.
fn check<C: Case>(case: &C) {
    let model = deferred(case);
    let traced = trace(case, &model);
    for micro_batches in [1, 2] {
        check_traced(
            &model,
            &traced,
            micro_batches,
            |step| case.batch(step, &Device::flex()),
            &Adam,
        );
    }
}

fn check_traced<M: Module + Sync + 'static, B: tinderbox::Batch>(
    model: &Deferred<M>,
    traced: &Trace<B>,
    micro_batches: usize,
    batch: impl Fn(u64) -> B,
    settings: &impl Settings<M, B>,
) {
    let dir = tempfile::tempdir().unwrap();
    let whole = Plan::manual(traced, &[]).unwrap();
    let builder = Pipeline::new(model, traced, &whole).seed(SEED);
    let builder = settings.of_pipeline(builder.micro_batches(micro_batches));
    let mut pipeline = builder.start().unwrap();
    let measured = |step: &tinderbox::StepOutput| -> Vec<u64> {
        let losses = step.micro_batch_losses.iter().copied();
        let all = losses.chain(step.gradient_norm);
        all.map(f64::to_bits).collect()
    };
    let expected = (0..STEPS).map(|step| measured(&pipeline.step(0.01, batch(step)).unwrap()));
    let expected: Vec<Vec<u64>> = expected.collect();
    let reference = Checkpoints::open(dir.path().join("reference")).unwrap();
    reference.save(&mut pipeline, 0).unwrap();
    let reference = reference.latest().unwrap().unwrap();

    let fine = Plan::streamed(traced, FINE).unwrap();
    assert!(fine.stages().len() > 2);
    let start = |limit: u64, dir: &Path| {
        let store = working_dir(model, &fine, dir);
        let builder = Streamed::new(model, traced, &fine).seed(SEED);
        let builder = settings.of_streamed(builder.micro_batches(micro_batches));
        builder
            .memory(MemoryBudget::Values(limit))
            .store(store)
            .start()
    };
    let least = match start(0, &dir.path().join("none")).map(drop) {
        Err(PipelineError::Streamed(StreamedError::Budget { least_bytes, .. })) => least_bytes,
        other => panic!("the limit is not too low: {other:?}"),
    };
    for part in 0..=3 {
        let limit = least + model.parameters().bytes() * part;
        let place = dir.path().join(part.to_string());
        let mut streamed = start(limit, &place).unwrap();
        for (step, expected) in expected.iter().enumerate() {
            let output = streamed.step(0.01, batch(step as u64)).unwrap();
            assert_eq!(measured(&output), *expected, "step {step}, limit {limit}");
        }
        let latest = Checkpoints::open(&place).unwrap().latest().unwrap();
        check_equal(&reference, &latest.unwrap());
    }
}

fn working_dir<M: Module>(model: &Deferred<M>, plan: &Plan, dir: &Path) -> WorkingDir {
    let source = model.replay(Seed::new(SEED));
    WorkingDir::open(dir, model, plan, source, SEED).unwrap()
}

/// All tensors, and all scalars but those of the run itself.
fn check_equal(expected: &Checkpoint, found: &Checkpoint) {
    let found = diff(expected, found, &()).unwrap();
    assert!(found.tensors.is_empty(), "{:?}", found.tensors);
    let scalars = found.scalars.iter();
    let of_parameters = scalars.filter(|scalar| scalar.name.starts_with("optimizer."));
    assert_eq!(of_parameters.count(), 0, "{:?}", found.scalars);
}

#[test]
fn a_tower() {
    check(&Mlp::<0>);
}

#[test]
fn a_language_model() {
    check(&LanguageModel::<0>);
}

#[test]
fn tied_parameters() {
    check(&Tied);
}

#[test]
fn skip_connections() {
    check(&UNet);
}

#[derive(Module, Debug)]
struct Normed {
    layers: Vec<Linear>,
    norm: BatchNorm,
    head: Linear,
}

fn normed() -> Deferred<Normed> {
    let init = |device: &Device| Normed {
        layers: (0..3)
            .map(|_| LinearConfig::new(6, 6).init(device))
            .collect(),
        norm: BatchNormConfig::new(6).init(device),
        head: LinearConfig::new(6, 2).init(device),
    };
    Deferred::new(init).unwrap()
}

fn forward(net: &Normed, x: Tensor<2>) -> Outputs {
    let x = net
        .layers
        .iter()
        .fold(x, |x, layer| layer.forward(x).tanh());
    let x = net.norm.forward::<2>(x);
    Outputs::loss(net.head.forward(x).powf_scalar(2.0).mean())
}

fn batch(step: u64) -> Tensor<2> {
    floats([8, 6], step, &Device::flex())
}

/// Running statistics are written with the parameters.
#[test]
fn running_states() {
    let model = normed();
    let traced = model.trace(&batch(0), forward).unwrap();
    check_traced(&model, &traced, 2, batch, &Adam);
}

/// All gradients stay until their norm is known.
#[test]
fn a_clip_by_the_norm_of_all_gradients() {
    struct Clipped;
    impl<M: Module + Sync + 'static, B: tinderbox::Batch> Settings<M, B> for Clipped {
        fn of_pipeline(&self, builder: PipelineBuilder<M, B>) -> PipelineBuilder<M, B> {
            builder
                .optimizer(SgdConfig::new())
                .clip(Clipping::GlobalNorm(0.01))
        }

        fn of_streamed(&self, builder: StreamedBuilder<M, B>) -> StreamedBuilder<M, B> {
            builder
                .optimizer(SgdConfig::new())
                .clip(Clipping::GlobalNorm(0.01))
        }
    }
    let model = normed();
    let traced = model.trace(&batch(0), forward).unwrap();
    check_traced(&model, &traced, 2, batch, &Clipped);
}

/// Only what is trained is written; the rest is read from the source.
#[test]
fn frozen_parameters_are_not_written() {
    let model = Deferred::new(|device: &Device| {
        let mut net = normed().construct(device);
        net.layers = net.layers.into_iter().map(Module::no_grad).collect();
        net
    });
    let model = model.unwrap();
    let traced = model.trace(&batch(0), forward).unwrap();
    let fine = Plan::streamed(&traced, FINE).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut streamed = Streamed::new(&model, &traced, &fine)
        .seed(SEED)
        .optimizer(AdamWConfig::new())
        .store(working_dir(&model, &fine, dir.path()))
        .start()
        .unwrap();
    let whole = Plan::manual(&traced, &[]).unwrap();
    let pipeline = Pipeline::new(&model, &traced, &whole).seed(SEED);
    let mut pipeline = pipeline.optimizer(AdamWConfig::new()).start().unwrap();
    for step in 0..STEPS {
        let expected = pipeline.step(0.01, batch(step)).unwrap();
        let found = streamed.step(0.01, batch(step)).unwrap();
        assert_eq!(found.loss.to_bits(), expected.loss.to_bits());
        assert_eq!(found.gradient_norm, expected.gradient_norm);
    }
    let saved = working_dir(&model, &fine, dir.path()).checkpoint().unwrap();
    let names = saved.tensors(tinderbox::checkpoint::Role::Model);
    let names: Vec<&str> = names.map(|tensor| &*tensor.name).collect();
    assert!(
        names.iter().all(|name| !name.starts_with("layers.")),
        "{names:?}"
    );
    assert!(
        names.contains(&"head.weight") && names.contains(&"norm.running_mean"),
        "{names:?}"
    );
}

/// A store that fails at a write or a commit, as a process that is killed.
struct Failing {
    inner: WorkingDir,
    left: Arc<AtomicU64>,
}

impl Failing {
    fn pass(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        match left {
            0 => Err("the disk is gone".into()),
            _ => Ok(()),
        }
    }
}

impl StageStore for Failing {
    fn step(&self) -> u64 {
        self.inner.step()
    }

    fn source(&self) -> Arc<dyn Source> {
        self.inner.source()
    }

    fn optimizer(&self) -> Option<Arc<dyn SavedOptimizer>> {
        self.inner.optimizer()
    }

    fn write(
        &self,
        step: u64,
        updated: UpdatedStage,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.pass()?;
        self.inner.write(step, updated)
    }

    fn commit(&self, step: u64) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.pass()?;
        self.inner.commit(step)
    }
}

/// Whatever fails, the directory has the last whole step, and training goes on from there with the same bits.
#[test]
fn a_step_is_whole_or_it_is_not_there() {
    let model = normed();
    let traced = model.trace(&batch(0), forward).unwrap();
    let fine = Plan::streamed(&traced, FINE).unwrap();
    let whole = Plan::manual(&traced, &[]).unwrap();
    let pipeline = Pipeline::new(&model, &traced, &whole).seed(SEED);
    let mut pipeline = pipeline.optimizer(AdamWConfig::new()).start().unwrap();
    let expected = (0..STEPS).map(|step| pipeline.step(0.01, batch(step)).unwrap().loss.to_bits());
    let expected: Vec<u64> = expected.collect();
    let start = |store: Failing| {
        let builder = Streamed::new(&model, &traced, &fine).seed(SEED);
        let builder = builder.optimizer(AdamWConfig::new()).store(store);
        builder.start().unwrap()
    };
    // Of a step: the writes of all stages that train, and the commit.
    for fails_after in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let left = Arc::new(AtomicU64::new(fails_after));
        let mut streamed = start(Failing {
            inner: working_dir(&model, &fine, dir.path()),
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
        let store = working_dir(&model, &fine, dir.path());
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
    }
}

/// A directory of another optimizer, or of another seed, is refused before anything is read.
#[test]
fn another_run_is_refused() {
    let model = normed();
    let traced = model.trace(&batch(0), forward).unwrap();
    let fine = Plan::streamed(&traced, FINE).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        let store = working_dir(&model, &fine, dir.path());
        Streamed::new(&model, &traced, &fine)
            .seed(SEED)
            .store(store)
    };
    let mut adam = start().optimizer(AdamWConfig::new()).start().unwrap();
    adam.step(0.01, batch(0)).unwrap();
    drop(adam);
    let error = start().optimizer(SgdConfig::new()).start().map(drop);
    let Err(PipelineError::Restore { source, .. }) = error else {
        panic!("{error:?}");
    };
    assert!(source.to_string().contains("optimizer"), "{source}");
    start().optimizer(AdamWConfig::new()).start().unwrap();

    let source = model.replay(Seed::new(8));
    let error = WorkingDir::open(dir.path(), &model, &fine, source, 8).unwrap_err();
    assert!(error.to_string().contains("seed"), "{error}");
}

#[test]
fn what_is_missing_is_named() {
    let model = normed();
    let traced = model.trace(&batch(0), forward).unwrap();
    let fine = Plan::streamed(&traced, FINE).unwrap();
    let mut streamed = Streamed::new(&model, &traced, &fine).start().unwrap();
    let error = streamed.step(0.01, batch(0)).map(drop).unwrap_err();
    assert!(error.to_string().contains("set one (`store`)"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let store = working_dir(&model, &fine, dir.path());
    let mut streamed = Streamed::new(&model, &traced, &fine)
        .store(store)
        .start()
        .unwrap();
    let error = streamed.step(0.01, batch(0)).map(drop).unwrap_err();
    assert!(error.to_string().contains("optimizer"), "{error}");
}
