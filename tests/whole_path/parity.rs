//! A pipeline computes what plain Burn computes: loss, every gradient, and the parameters after five
//! steps, bit for bit, for every number of stages, schedule and number of micro-batches.

use std::collections::BTreeMap;

use burn::optim::AdamWConfig;
use burn::tensor::{Device, TensorData};
use tinderbox::{Deferred, Machine, Pipeline, Plan, ScheduleKind};

use crate::models::{
    Case, LanguageModel, Mlp, SAMPLES, StraightThrough, Tied, UNet, deferred, trace,
};
use crate::plain::{LR, Run, SEED, data, train};

const STEPS: u64 = 5;

/// The micro-batches of every step, as the reference takes them.
pub fn micro_batches<C: Case>(case: &C, count: usize) -> Vec<Vec<(C::Batch, usize)>> {
    let device = Device::flex().autodiff();
    (0..STEPS)
        .map(|step| {
            let batch = case.batch(step, &device);
            tinderbox::split_batch(&batch, count).expect("the batch can be split")
        })
        .collect()
}

pub fn pipeline_run<C: Case>(
    case: &C,
    model: &Deferred<C::Model>,
    stages: usize,
    schedule: ScheduleKind,
    micro_batches: usize,
) -> Run {
    let device = Device::flex();
    let trace = trace(case, model);
    let plan = Plan::auto(&trace, &Machine::local(stages).unwrap()).unwrap();
    let mut pipeline = Pipeline::new(model, &trace, &plan)
        .optimizer(AdamWConfig::new().build())
        .schedule(schedule)
        .micro_batches(micro_batches)
        .seed(SEED)
        .keep_gradients()
        .start()
        .unwrap();
    let mut run = Run::default();
    for step in 0..STEPS {
        let output = pipeline.step(LR, case.batch(step, &device)).unwrap();
        run.losses.push(output.micro_batch_losses);
        if step == 0 {
            run.gradients = from_ranks(&mut pipeline, |stage| {
                stage
                    .gradients()
                    .map(|(p, g)| (p.to_string(), data(g.clone())))
                    .collect()
            });
        }
    }
    run.parameters = from_ranks(&mut pipeline, |stage| {
        stage
            .parameters()
            .values()
            .map(|(p, v)| (p.to_string(), data(v)))
            .collect()
    });
    run
}

fn from_ranks<C, B>(
    pipeline: &mut Pipeline<C, B>,
    read: impl Fn(&tinderbox::Stage) -> Vec<(String, TensorData)> + Send + Sync + 'static,
) -> BTreeMap<String, TensorData>
where
    C: burn::module::Module + Sync + 'static,
    B: tinderbox::Batch,
{
    let found = pipeline
        .on_ranks(move |_, stages| stages.iter().flat_map(&read).collect::<Vec<_>>())
        .unwrap();
    found.into_iter().flatten().collect()
}

pub fn assert_same(found: &Run, expected: &Run, what: &str) {
    assert_eq!(found.losses, expected.losses, "losses, {what}");
    for (name, found, expected) in [
        ("gradients", &found.gradients, &expected.gradients),
        ("parameters", &found.parameters, &expected.parameters),
    ] {
        let paths = |run: &BTreeMap<String, TensorData>| run.keys().cloned().collect::<Vec<_>>();
        assert_eq!(paths(found), paths(expected), "{name}, {what}");
        for (path, expected) in expected {
            assert_eq!(
                found[path].shape(),
                expected.shape(),
                "{name} of {path}, {what}"
            );
            assert!(
                found[path].as_bytes() == expected.as_bytes(),
                "{name} of {path} differ, {what}: {}",
                largest_difference(&found[path], expected),
            );
        }
    }
}

/// max|a-b| / max|b|.
fn largest_difference(a: &TensorData, b: &TensorData) -> f64 {
    let scale = b
        .iter::<f64>()
        .map(f64::abs)
        .fold(f64::MIN_POSITIVE, f64::max);
    let pairs = a.iter::<f64>().zip(b.iter::<f64>());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / scale
}

fn check<C: Case>(case: C) {
    let model = deferred(&case);
    for count in [1, 2, 3, SAMPLES] {
        let expected = train(&case, &model, &micro_batches(&case, count));
        assert!(!expected.gradients.is_empty());
        check_every_cut(&case, &model, count, &expected);
    }
}

/// One to five stages and both schedules give the expected run.
pub fn check_every_cut<C: Case>(
    case: &C,
    model: &Deferred<C::Model>,
    count: usize,
    expected: &Run,
) {
    for stages in 1..=5 {
        for schedule in [ScheduleKind::GPipe, ScheduleKind::OneFOneB] {
            let found = pipeline_run(case, model, stages, schedule, count);
            let what = format!("{stages} stages, {schedule}, {count} micro-batches");
            assert_same(&found, expected, &what);
        }
    }
}

#[test]
fn multilayer_perceptron() {
    check(Mlp::<0>);
}

#[test]
fn language_model() {
    check(LanguageModel::<0>);
}

#[test]
fn u_shaped_network_with_skips() {
    check(UNet);
}

#[test]
fn head_that_reads_the_embedding() {
    check(Tied);
}

#[test]
fn straight_through_estimator() {
    check(StraightThrough);
}
