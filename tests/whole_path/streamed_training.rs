//! Training with less memory than a model needs, compared with a pipeline that holds everything, bit for bit.

use std::path::Path;

use burn::module::{Module, ParamGroup};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor};
use tinderbox::checkpoint::tools::diff;
use tinderbox::deferred::random::Seed;
use tinderbox::error::{PipelineError, StreamedError};
use tinderbox::pipeline::{PipelineBuilder, StreamedBuilder};
use tinderbox::{
    Checkpoint, Checkpoints, Clipping, Deferred, MemoryBudget, MixedPrecision, Outputs, Pipeline,
    Plan, Streamed, Trace, Traceable, WorkingDir,
};

use crate::models::{Case, LanguageModel, Mlp, Tied, UNet, deferred, floats, trace};

/// Stages of one block each.
pub const FINE: MemoryBudget = MemoryBudget::Values(16);
pub const SEED: u64 = 7;
pub const STEPS: u64 = 3;

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

/// SGD, with a clip by the norm of all gradients.
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

/// Trains with every limit from the least to one in which all fits; compares losses, parameters, running states and the state of
/// the optimizer.
fn check<C: Case>(case: &C) {
    let model = deferred(case);
    for micro_batches in [1, 2] {
        let traced = trace(case, &model, micro_batches);
        check_traced(
            &model,
            &traced,
            |step| case.batch(step, &Device::flex()),
            &Adam,
        );
    }
}

fn check_traced<M: Module + Sync + 'static, B: tinderbox::Batch>(
    model: &Deferred<M>,
    traced: &Trace<B>,
    batch: impl Fn(u64) -> B,
    settings: &impl Settings<M, B>,
) {
    let dir = tempfile::tempdir().unwrap();
    let whole = traced.plan_at(&[]).unwrap();
    let builder = Pipeline::builder(model, traced, &whole).seed(SEED);
    let builder = settings.of_pipeline(builder);
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

    let fine = traced.plan_streamed(FINE).unwrap();
    assert!(fine.stages.len() > 2);
    let coarse = traced.plan_streamed(MemoryBudget::Values(1 << 30)).unwrap();
    assert_eq!(coarse.stages.len(), 1);
    let start = |plan: &Plan, limit: u64, dir: &Path| {
        let store = working_dir(model, dir);
        let builder = Streamed::builder(model, traced, plan).seed(SEED);
        let builder = settings.of_streamed(builder);
        builder
            .memory_limit(MemoryBudget::Values(limit))
            .store(store)
            .start()
    };
    let least = |plan: &Plan| match start(plan, 0, &dir.path().join("none")).map(drop) {
        Err(PipelineError::Streamed(StreamedError::Budget { least_bytes, .. })) => least_bytes,
        other => panic!("the limit is not too low: {other:?}"),
    };
    let parts = (0..=3).map(|part| {
        let limit = least(&fine) + model.parameters().bytes() * part;
        (&fine, limit)
    });
    for (turn, (plan, limit)) in parts.chain([(&coarse, least(&coarse))]).enumerate() {
        let place = dir.path().join(turn.to_string());
        let mut streamed = start(plan, limit, &place).unwrap();
        for (step, expected) in expected.iter().enumerate() {
            let output = streamed.step(0.01, batch(step as u64)).unwrap();
            assert_eq!(measured(&output), *expected, "step {step}, limit {limit}");
        }
        let latest = Checkpoints::open(&place).unwrap().latest().unwrap();
        check_equal(&reference, &latest.unwrap());
    }
}

pub fn working_dir<M: Module>(model: &Deferred<M>, dir: &Path) -> WorkingDir {
    WorkingDir::open(dir, model, model.initializer(Seed::new(SEED))).unwrap()
}

/// All tensors, and all scalars but the scalars of the run itself.
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
pub struct Normed {
    pub layers: Vec<Linear>,
    norm: BatchNorm,
    head: Linear,
}

pub fn normed() -> Deferred<Normed> {
    let init = |device: &Device| Normed {
        layers: (0..3)
            .map(|_| LinearConfig::new(6, 6).init(device))
            .collect(),
        norm: BatchNormConfig::new(6).init(device),
        head: LinearConfig::new(6, 2).init(device),
    };
    Deferred::new(init).unwrap()
}

pub fn forward(net: &Normed, x: Tensor<2>) -> Outputs {
    let x = net
        .layers
        .iter()
        .fold(x, |x, layer| layer.forward(x).tanh());
    let x = net.norm.forward::<2>(x);
    Outputs::loss(net.head.forward(x).powf_scalar(2.0).mean())
}

pub fn batch(step: u64) -> Tensor<2> {
    floats([8, 6], step, &Device::flex())
}

/// Running statistics are written with the parameters.
#[test]
fn running_states() {
    let model = normed();
    let traced = model.trace(&batch(0), 2, forward).unwrap();
    check_traced(&model, &traced, batch, &Adam);
}

/// Each in 16 bits in the forward.
#[test]
fn mixed_precision() {
    let model = normed();
    let traced = MixedPrecision::bf16(&model).trace(&batch(0), 2, forward);
    check_traced(&model, &traced.unwrap(), batch, &Adam);
}

#[derive(Module, Debug)]
struct Backwards {
    last: Linear,
    second: Linear,
    first: Linear,
}

/// Sums over all parameters are in the order of the model's fields, whatever the order of the forward.
#[test]
fn parameters_in_another_order_than_that_of_the_forward() {
    let model = Deferred::new(|device: &Device| Backwards {
        last: LinearConfig::new(9, 2).init(device),
        second: LinearConfig::new(7, 9).init(device),
        first: LinearConfig::new(6, 7).init(device),
    });
    let model = model.unwrap();
    let traced = |micro_batches| {
        let traced = model.trace(&batch(0), micro_batches, |net: &Backwards, x: Tensor<2>| {
            let x = net.second.forward(net.first.forward(x).tanh()).tanh();
            Outputs::loss(net.last.forward(x).powf_scalar(2.0).mean())
        });
        traced.unwrap()
    };
    check_traced(&model, &traced(2), batch, &Adam);
    check_traced(&model, &traced(1), batch, &Clipped);
}

/// One optimizer for the weights, another one for biases.
#[test]
fn groups_of_parameters() {
    struct Groups;
    impl<M: Module + Sync + 'static, B: tinderbox::Batch> Settings<M, B> for Groups {
        fn of_pipeline(&self, builder: PipelineBuilder<M, B>) -> PipelineBuilder<M, B> {
            let adam = AdamWConfig::new().with_weight_decay(0.1);
            builder
                .optimizer(adam)
                .optimizer_group(biases(), SgdConfig::new())
        }

        fn of_streamed(&self, builder: StreamedBuilder<M, B>) -> StreamedBuilder<M, B> {
            let adam = AdamWConfig::new().with_weight_decay(0.1);
            builder
                .optimizer(adam)
                .optimizer_group(biases(), SgdConfig::new())
        }
    }
    fn biases() -> ParamGroup {
        ParamGroup::from_regex("bias$").unwrap()
    }
    let model = normed();
    let traced = model.trace(&batch(0), 2, forward).unwrap();
    check_traced(&model, &traced, batch, &Groups);
}

/// All gradients stay until their norm is known.
#[test]
fn a_clip_by_the_norm_of_all_gradients() {
    let model = normed();
    let traced = model.trace(&batch(0), 2, forward).unwrap();
    check_traced(&model, &traced, batch, &Clipped);
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
    let traced = model.trace(&batch(0), 1, forward).unwrap();
    let fine = traced.plan_streamed(FINE).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut streamed = Streamed::builder(&model, &traced, &fine)
        .seed(SEED)
        .optimizer(AdamWConfig::new())
        .store(working_dir(&model, dir.path()))
        .start()
        .unwrap();
    let whole = traced.plan_at(&[]).unwrap();
    let pipeline = Pipeline::builder(&model, &traced, &whole).seed(SEED);
    let mut pipeline = pipeline.optimizer(AdamWConfig::new()).start().unwrap();
    for step in 0..STEPS {
        let expected = pipeline.step(0.01, batch(step)).unwrap();
        let found = streamed.step(0.01, batch(step)).unwrap();
        assert_eq!(found.loss.to_bits(), expected.loss.to_bits());
        assert_eq!(found.gradient_norm, expected.gradient_norm);
    }
    let saved = working_dir(&model, dir.path()).checkpoint().unwrap();
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

#[test]
fn what_is_missing_is_named() {
    let model = normed();
    let traced = model.trace(&batch(0), 1, forward).unwrap();
    let fine = traced.plan_streamed(FINE).unwrap();
    let mut streamed = Streamed::builder(&model, &traced, &fine).start().unwrap();
    let error = streamed.step(0.01, batch(0)).map(drop).unwrap_err();
    assert!(error.to_string().contains("set one (`store`)"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let store = working_dir(&model, dir.path());
    let mut streamed = Streamed::builder(&model, &traced, &fine)
        .store(store)
        .start()
        .unwrap();
    let error = streamed.step(0.01, batch(0)).map(drop).unwrap_err();
    assert!(error.to_string().contains("optimizer"), "{error}");
}
