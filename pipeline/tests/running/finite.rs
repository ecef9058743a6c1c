//! Losses and gradients that are NaN or infinite, and invalid numbers in settings.

use std::collections::BTreeMap;

use burn::module::{Module, ParamGroup};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::optim::lr_scheduler::LrSchedulerConfig;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLrSchedulerConfig;
use burn::tensor::{Device, Tensor, TensorData, activation::gelu};
use tinderbox_pipeline::{
    Clipping, LossScale, Machine, Outputs, Pipeline, PipelineBuilder, PipelineError, ScheduleKind,
    StepError, Traceable,
};
use tinderbox_pipeline_tests::{
    Case, LR, SAMPLES, SEED, floats, full_text, noise, parameters, squared,
};

use crate::events;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

/// Inputs, targets, and a value that is added to the loss.
type Batch = (Tensor<2>, Tensor<2>, Tensor<1>);

const CASE: Case<Net, Batch> = Case {
    init: |device| Net {
        layers: (0..6)
            .map(|_| LinearConfig::new(4, 4).init(device))
            .collect(),
    },
    // The first layer's gradient comes from two stages.
    forward: |net, (x, y, added)| {
        let x = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
        let x = x.matmul(net.layers[0].weight.val());
        (squared(x, y) + added.mean(), None)
    },
    batch: |n, device| {
        let shape = [SAMPLES, 4];
        let (x, y) = (floats(shape, n, device), floats(shape, n + 1000, device));
        (x, y, Tensor::zeros([SAMPLES], device))
    },
};

/// A batch whose sample 3, in the second of four micro-batches, has this input and this addition to its
/// loss.
fn with(input: f32, added: f32) -> Batch {
    let device = Device::flex();
    let (_, y, _) = (CASE.batch)(7, &device);
    let mut values = noise(SAMPLES * 4, 7);
    values[3 * 4] = input;
    let x = Tensor::from_data(TensorData::new(values, [SAMPLES, 4]), &device);
    let mut all = [0.0; SAMPLES];
    all[3] = added;
    (x, y, Tensor::from_data(TensorData::from(all), &device))
}

const SHAPES: [(usize, ScheduleKind); 4] = [
    (1, ScheduleKind::GPipe),
    (2, ScheduleKind::OneFOneB),
    (3, ScheduleKind::ZbH2),
    (2, ScheduleKind::Zbv),
];

fn builder(ranks: usize, kind: ScheduleKind) -> PipelineBuilder<Net, Batch> {
    let chunks = if kind == ScheduleKind::Zbv { 2 } else { 1 };
    let model = CASE.model();
    let trace = CASE.trace(&model, 4);
    let machine = Machine::local(ranks).unwrap();
    let machine = machine.with_chunks(chunks, kind.placement()).unwrap();
    let plan = trace.plan(&machine).unwrap();
    Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .schedule(kind)
        .seed(SEED)
}

fn gathered(pipeline: &mut Pipeline<Net, Batch>) -> BTreeMap<String, Vec<u8>> {
    parameters(&pipeline.gather(&Device::flex()).unwrap())
}

fn good(pipeline: &mut Pipeline<Net, Batch>, steps: std::ops::Range<u64>) {
    for step in steps {
        let batch = (CASE.batch)(step, &Device::flex());
        assert!(pipeline.step(LR, batch).unwrap().is_finite());
    }
}

#[test]
fn a_step_that_is_not_finite_changes_nothing() {
    for (ranks, kind) in SHAPES {
        let mut plain = builder(ranks, kind).start().unwrap();
        good(&mut plain, 0..3);
        let expected = gathered(&mut plain);
        let mut pipeline = builder(ranks, kind).stop_on_non_finite().start().unwrap();
        good(&mut pipeline, 0..2);
        let before = gathered(&mut pipeline);
        for batch in [with(f32::NAN, 0.0), with(0.5, f32::INFINITY)] {
            let error = pipeline.step(LR, batch).unwrap_err();
            assert!(
                matches!(
                    error,
                    PipelineError::Step(StepError::NotFinite { step: 2, .. })
                ),
                "{}",
                full_text(&error)
            );
            assert_eq!(pipeline.steps(), 2);
            assert!(gathered(&mut pipeline) == before, "{ranks} ranks, {kind}");
        }
        // The optimizer state is unchanged too.
        good(&mut pipeline, 2..3);
        assert!(gathered(&mut pipeline) == expected, "{ranks} ranks, {kind}");
    }
}

#[test]
fn values_that_are_not_finite_are_named() {
    let stopped = |batch: Batch| {
        let builder = builder(2, ScheduleKind::OneFOneB).stop_on_non_finite();
        let mut pipeline = builder.start().unwrap();
        full_text(&pipeline.step(LR, batch).unwrap_err())
    };
    insta::assert_snapshot!(stopped(with(f32::NAN, 0.0)), @"step 0 was stopped before the update, and no parameter has changed: the loss of micro-batch 1 is NaN, and the gradients of `layers.0.weight`, `layers.0.bias`, `layers.1.weight` and 9 more are not finite; skip the batch, or lower the learning rate and resume from a checkpoint");
    // The gradients are the gradients of the other part of the loss.
    insta::assert_snapshot!(stopped(with(0.5, f32::NEG_INFINITY)), @"step 0 was stopped before the update, and no parameter has changed: the loss of micro-batch 1 is -inf; skip the batch, or lower the learning rate and resume from a checkpoint");
    let (x, y, added) = with(0.5, 0.0);
    insta::assert_snapshot!(stopped((x * f32::NAN, y, added)), @"step 0 was stopped before the update, and no parameter has changed: the losses of micro-batches 0, 1, 2 and 1 more are not finite, and the gradients of `layers.0.weight`, `layers.0.bias`, `layers.1.weight` and 9 more are not finite; skip the batch, or lower the learning rate and resume from a checkpoint");
}

/// A finite loss whose gradient is infinite: the gradient of a square root at zero.
fn root_of_zero() -> PipelineBuilder<Net, Batch> {
    let model = CASE.model();
    let forward = |net: &Net, (x, _, _): Batch| {
        let x = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
        Outputs::loss((x * 0.0).sqrt().mean())
    };
    let trace = model
        .trace(&(CASE.batch)(0, &Device::flex()), 4, forward)
        .unwrap();
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    Pipeline::builder(&model, &trace, &plan).optimizer(AdamWConfig::new())
}

#[test]
fn a_gradient_alone_is_named() {
    let mut pipeline = root_of_zero().stop_on_non_finite().start().unwrap();
    let error = pipeline.step(LR, with(0.5, 0.0)).unwrap_err();
    insta::assert_snapshot!(full_text(&error), @"step 0 was stopped before the update, and no parameter has changed: the gradients of `layers.0.weight`, `layers.0.bias`, `layers.1.weight` and 9 more are not finite; skip the batch, or lower the learning rate and resume from a checkpoint");
    // The norm is known although no setting needs it.
    let mut pipeline = root_of_zero().start().unwrap();
    let output = pipeline.step(LR, with(0.5, 0.0)).unwrap();
    assert_eq!(output.loss, 0.0);
    assert!(!output.gradient_norm.unwrap().is_finite() && !output.is_finite());
}

/// The same bits, whether ranks need the norm for a clip or the driver computes it.
#[test]
fn the_norm_of_all_gradients_is_known_in_every_step() {
    for (ranks, kind) in SHAPES {
        let norm = |builder: PipelineBuilder<Net, Batch>| {
            let mut pipeline = builder.start().unwrap();
            let output = pipeline.step(LR, with(0.5, 0.0)).unwrap();
            assert_eq!(
                pipeline.evaluate(with(0.5, 0.0)).unwrap().gradient_norm,
                None
            );
            output.gradient_norm.unwrap()
        };
        let clipped = norm(builder(ranks, kind).clip(Clipping::GlobalNorm(1e3)));
        let free = norm(builder(ranks, kind));
        assert!(free > 0.0 && free.is_finite());
        assert_eq!(free.to_bits(), clipped.to_bits(), "{ranks} ranks, {kind}");
    }
}

#[test]
fn without_the_setting_the_output_reports_it() {
    for clip in [false, true] {
        let mut builder = builder(2, ScheduleKind::OneFOneB);
        if clip {
            builder = builder.clip(Clipping::GlobalNorm(1.0));
        }
        events::collect();
        let mut pipeline = builder.start().unwrap();
        let warned = |at: &str| {
            let text = events::take();
            let (at, what) = (format!("step: {at}; "), "is not finite");
            text.lines()
                .filter(|line| line.contains(&at) && line.contains(what))
                .count()
        };
        let output = pipeline.step(LR, with(0.5, f32::INFINITY)).unwrap();
        assert!(!output.is_finite());
        assert_eq!(output.loss, f64::INFINITY);
        assert_eq!(warned("0"), 1);
        let output = pipeline.evaluate(with(f32::NAN, 0.0)).unwrap();
        assert!(!output.is_finite());
        assert_eq!(warned("1"), 1);
        assert!(pipeline.evaluate(with(0.5, 0.0)).unwrap().is_finite());
        assert_eq!(warned("1"), 0);
    }
}

/// With a loss scale, steps whose gradients overflow are skipped; a loss that is not finite stops the
/// step.
#[test]
fn a_loss_scale_keeps_its_own_skipping() {
    let scaled = |builder: PipelineBuilder<Net, Batch>| {
        let builder = builder.stop_on_non_finite();
        builder.loss_scale(LossScale::dynamic()).start().unwrap()
    };
    let mut pipeline = scaled(root_of_zero());
    let before = gathered(&mut pipeline);
    let output = pipeline.step(LR, with(0.5, 0.0)).unwrap();
    assert!(output.skipped && !output.is_finite());
    assert_eq!(pipeline.steps(), 1);
    assert!(gathered(&mut pipeline) == before);

    let mut pipeline = scaled(builder(2, ScheduleKind::OneFOneB));
    let before = gathered(&mut pipeline);
    let scale = pipeline.loss_scale();
    // The gradients are finite.
    let error = pipeline.step(LR, with(0.5, f32::NEG_INFINITY)).unwrap_err();
    insta::assert_snapshot!(full_text(&error), @"step 0 was stopped before the update, and no parameter has changed: the loss of micro-batch 1 is -inf; skip the batch, or lower the learning rate and resume from a checkpoint");
    assert_eq!(pipeline.steps(), 0);
    assert_eq!(pipeline.loss_scale(), scale);
    assert!(gathered(&mut pipeline) == before);
}

#[test]
fn zero_threads_are_refused() {
    let start = |builder: PipelineBuilder<Net, Batch>| full_text(&builder.start().unwrap_err());
    insta::assert_snapshot!(start(builder(1, ScheduleKind::GPipe).threads_per_rank(0)), @"a rank can't run on 0 threads: use at least 1, or leave `threads_per_rank` out for an equal share of the machine");
}

#[test]
fn invalid_learning_rates_are_refused() {
    let mut pipeline = builder(2, ScheduleKind::OneFOneB).start().unwrap();
    let before = gathered(&mut pipeline);
    let batch = || (CASE.batch)(0, &Device::flex());
    let must = "it must be finite and not negative";
    for (rate, shown) in [
        (f64::NAN, "NaN"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
        (-1e-3, "-0.001"),
    ] {
        let text = full_text(&pipeline.step(rate, batch()).unwrap_err());
        assert_eq!(text, format!("the learning rate is {shown}: {must}"));
        let rates = ModuleLrSchedulerConfig::new(LrSchedulerConfig::Constant(LR))
            .with_group(
                ParamGroup::from_path("layers.3.weight"),
                LrSchedulerConfig::Constant(rate),
            )
            .init();
        // Burn refuses some rates itself.
        let Ok(mut rates) = rates else { continue };
        let text = full_text(
            &pipeline
                .step_accumulated(rates.step(), [batch()])
                .unwrap_err(),
        );
        assert_eq!(
            text,
            format!("the learning rate of `layers.3.weight` is {shown}: {must}")
        );
    }
    assert!(gathered(&mut pipeline) == before);
    assert_eq!(pipeline.steps(), 0);
    // A rate of 0 is valid and changes nothing.
    pipeline.step(0.0, batch()).unwrap();
}
