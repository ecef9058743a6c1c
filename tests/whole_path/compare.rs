//! Comparison of a step in plain Burn with one in the pipeline.

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{Device, Distribution, Tensor};
use tinderbox::compare::{Comparison, GradientComparison};
use tinderbox::world::WorldOptions;
use tinderbox::{
    Clipping, Cut, Deferred, DynTensor, Machine, Outputs, Pipeline, Plan, Trace, Traceable,
    compare_with_burn,
};
use tinderbox_engines::{Delays, Threads};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    scale: Param<Tensor<1>>,
    unused: Linear,
    dropout: Dropout,
}

type Pair = (Tensor<2>, Tensor<2>);

fn model(dropout: f64) -> Deferred<Net> {
    Deferred::new(move |device| Net {
        layers: (0..4)
            .map(|_| LinearConfig::new(6, 6).init(device))
            .collect(),
        scale: Param::from_tensor(Tensor::ones([6], device)),
        unused: LinearConfig::new(2, 2).init(device),
        dropout: DropoutConfig::new(dropout).init(),
    })
    .unwrap()
}

fn forward(net: &Net, (x, y): Pair) -> Outputs {
    let step = |x, layer: &Linear| net.dropout.forward(gelu(layer.forward(x)));
    let made = net.layers.iter().fold(x, step) * net.scale.val().unsqueeze();
    Outputs::loss((made - y).powi_scalar(2).mean())
}

fn batch() -> Pair {
    let device = Device::flex();
    device.seed(3);
    let random = || Tensor::random([8, 6], Distribution::Normal(0.0, 1.0), &device);
    (random(), random())
}

fn planned(model: &Deferred<Net>, micro_batches: usize) -> (Trace<Pair>, Plan) {
    let trace = model.trace(&batch(), micro_batches, forward).unwrap();
    let plan = trace
        .plan_at(&[Cut::before("layers.1"), Cut::before("layers.3")])
        .unwrap();
    (trace, plan)
}

#[test]
fn a_model_agrees_with_plain_burn() {
    let model = model(0.0);
    let (trace, plan) = planned(&model, 4);
    let builder = Pipeline::builder(&model, &trace, &plan).seed(5);
    let report = compare_with_burn(builder, batch(), forward).unwrap();
    assert!(report.agrees_within(1e-5), "{report}");
    assert!(!report.agrees_within(0.0), "{report}");
    assert_eq!(report.micro_batches, 1);
    assert_eq!(report.parameters.len(), 11);
    // A sum over micro-batches is rounded at other points than one over the batch.
    let is_equal = |gradient| {
        matches!(
            gradient,
            GradientComparison::Both {
                is_bit_equal: true,
                ..
            }
        )
    };
    assert!(!report.parameters.iter().all(|p| is_equal(p.gradient)));
    let unused = report
        .parameters
        .iter()
        .find(|p| p.path.as_str() == "unused.weight");
    assert_eq!(unused.unwrap().gradient, GradientComparison::Neither);
    // One micro-batch is the batch: all bits are equal.
    let (trace, plan) = planned(&model, 1);
    let builder = Pipeline::builder(&model, &trace, &plan);
    let report = compare_with_burn(builder, batch(), forward).unwrap();
    let differs = |gradient| !is_equal(gradient) && gradient != GradientComparison::Neither;
    assert!(
        !report.parameters.iter().any(|p| differs(p.gradient)),
        "{report}"
    );
    assert_eq!(report.loss.plain, report.loss.pipeline);
    let table = report.to_string();
    assert!(
        table.contains("layers.2.weight") && table.contains("equal bits"),
        "{table}"
    );
}

#[test]
fn a_forward_that_differs_is_shown_by_name() {
    let model = model(0.0);
    let (trace, plan) = planned(&model, 1);
    let other = |net: &Net, (x, y): Pair| {
        let step = |x, layer: &Linear| gelu(layer.forward(x));
        let made = net.layers.iter().fold(x, step);
        // Neither the scale nor the bias of the last layer contributes.
        let last = net.layers[3].bias.as_ref().unwrap().val();
        Outputs::loss((made - y).powi_scalar(2).mean() + last.sum() * 0.1)
    };
    let builder = Pipeline::builder(&model, &trace, &plan);
    let report = compare_with_burn(builder, batch(), other).unwrap();
    assert!(!report.agrees());
    let differing = || report.differing(Comparison::TOLERANCE);
    let named: Vec<&str> = differing().map(|p| p.path.as_str()).collect();
    assert_eq!(named, ["layers.3.bias", "scale"]);
    let scale = differing().last().unwrap();
    assert_eq!(scale.gradient, GradientComparison::MissingInPlain);
    let table = report.to_string();
    let line = |name: &str| {
        table
            .lines()
            .find(|line| line.contains(name))
            .unwrap()
            .to_owned()
    };
    assert!(line("layers.3.bias").contains("differs"), "{table}");
    assert!(line("scale").contains("missing in plain Burn"), "{table}");
}

/// Random values differ, and are not ignored.
#[test]
fn dropout_is_reported() {
    let model = model(0.5);
    let (trace, plan) = planned(&model, 1);
    let builder = Pipeline::builder(&model, &trace, &plan);
    let report = compare_with_burn(builder, batch(), forward).unwrap();
    assert_eq!(report.random_operations, 4);
    assert!(!report.agrees());
    assert!(
        report
            .to_string()
            .starts_with("the forward has 4 random operations")
    );
}

#[derive(Module, Debug)]
struct Shifted {
    layer: Linear,
    shift: Param<Tensor<1>>,
}

/// Shifting all scores by one number does not change a softmax: its gradient is 0 except for rounding, which
/// differs between any two orders of additions.
#[test]
fn a_gradient_of_rounding_alone_is_no_difference() {
    let model = Deferred::new(|device| Shifted {
        layer: LinearConfig::new(6, 6).init(device),
        shift: Param::from_tensor(Tensor::ones([1], device)),
    });
    let model = model.unwrap();
    let forward = |net: &Shifted, (x, y): Pair| {
        let scores = net.layer.forward(x) + net.shift.val().unsqueeze();
        Outputs::loss((softmax(scores, 1) - y).powi_scalar(2).mean())
    };
    let trace = model.trace(&batch(), 4, forward).unwrap();
    let plan = trace.plan(&Machine::local(1).unwrap()).unwrap();
    let builder = Pipeline::builder(&model, &trace, &plan);
    let report = compare_with_burn(builder, batch(), forward).unwrap();
    let shift = report.parameters.last().unwrap();
    assert!(
        matches!(
            shift.gradient,
            GradientComparison::Both { is_rounding: true, largest_difference, .. } if largest_difference < 1e-7
        ),
        "{report}"
    );
    assert!(report.agrees(), "{report}");
}

/// As in a step, a batch with fewer samples than micro-batches has one micro-batch per sample.
#[test]
fn a_batch_of_few_samples_agrees() {
    let model = model(0.0);
    let (trace, plan) = planned(&model, 4);
    let few = || {
        let (x, y) = batch();
        (x.narrow(0, 0, 3), y.narrow(0, 0, 3))
    };
    let builder = Pipeline::builder(&model, &trace, &plan);
    let report = compare_with_burn(builder, few(), forward).unwrap();
    assert!(report.agrees_within(1e-5), "{report}");
}

/// What an update does to gradients is no part of the comparison.
#[test]
fn settings_of_updates_change_nothing() {
    let model = model(0.0);
    let (trace, plan) = planned(&model, 4);
    let builder = || Pipeline::builder(&model, &trace, &plan);
    let batch = batch();
    let expected = compare_with_burn(builder(), batch.clone(), forward).unwrap();
    let changing = builder()
        .optimizer(AdamWConfig::new())
        .average(0.9)
        .clip(Clipping::GlobalNorm(1e-3))
        .stop_on_non_finite()
        .on_gradients(|_, gradient| {
            DynTensor::zeros(gradient.shape(), gradient.dtype(), &gradient.device())
        });
    let report = compare_with_burn(changing, batch, forward).unwrap();
    assert!(report.agrees(), "{report}");
    assert_eq!(report, expected);
}

/// Each process would compare the rank that is its own.
#[test]
fn a_world_of_processes_is_refused() {
    let options = WorldOptions::default();
    let refused = Threads::run(2, Delays::default(), &options, |world, _| {
        let model = model(0.0);
        let (trace, plan) = planned(&model, 4);
        let builder = Pipeline::builder(&model, &trace, &plan).world(&world);
        let error = compare_with_burn(builder, batch(), forward).unwrap_err();
        error.to_string()
    });
    for error in refused.unwrap() {
        assert_eq!(
            error,
            "the builder has a world, whose processes would each compare their own rank: leave out `world`, and compare in \
             one process"
        );
    }
}

#[derive(Module, Debug)]
struct Normed {
    first: Linear,
    norm: BatchNorm,
    last: Linear,
}

fn normed() -> Deferred<Normed> {
    Deferred::new(|device| Normed {
        first: LinearConfig::new(6, 6).init(device),
        norm: BatchNormConfig::new(6).init(device),
        last: LinearConfig::new(6, 6).init(device),
    })
    .unwrap()
}

fn squares(net: &Normed, (x, y): Pair) -> Tensor<2> {
    let x = gelu(net.norm.forward(net.first.forward(x)));
    (net.last.forward(x) - y).powi_scalar(2)
}

/// Statistics of micro-batches are not the statistics of the batch: plain Burn processes the pipeline's micro-batches, one after
/// the other, and the report says so.
#[test]
fn a_model_with_batch_norm_is_compared_in_the_same_micro_batches() {
    let model = normed();
    let forward = |net: &Normed, pair: Pair| Outputs::loss(squares(net, pair).mean());
    let compare = |micro_batches| {
        let trace = model.trace(&batch(), micro_batches, forward).unwrap();
        let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
        let builder = Pipeline::builder(&model, &trace, &plan);
        let report = compare_with_burn(builder, batch(), forward).unwrap();
        assert!(report.agrees(), "{report}");
        assert_eq!(report.micro_batches, micro_batches);
        let line = format!("plain Burn has processed the same {micro_batches} micro-batches");
        assert_eq!(
            report.to_string().contains(&line),
            micro_batches > 1,
            "{report}"
        );
        report.loss
    };
    let (whole, split) = (compare(1), compare(2));
    assert_ne!(whole, split, "the statistics of micro-batches are others");
    // Without the rule, a step of the whole batch would be compared with a step of micro-batches.
    let difference = (whole.plain - split.pipeline).abs() / whole.plain;
    assert!(difference > Comparison::TOLERANCE, "{difference}");
}

/// As in a step, each micro-batch counts with its part of what the loss is over.
#[test]
fn micro_batches_of_batch_norm_have_their_weights() {
    let model = normed();
    let sum = |net: &Normed, pair: Pair| Outputs::sum(squares(net, pair).sum());
    // Only targets above 0 count.
    let counted = |net: &Normed, (x, y): Pair| {
        let mask = y.clone().greater_elem(0.0);
        let count = mask.clone().int().sum();
        let squares = squares(net, (x, y)) * mask.float();
        Outputs::loss(squares.sum() / count.clone().float()).weighted_by(count)
    };
    // 3, 3 and 2 samples.
    let trace = model.trace(&batch(), 3, sum).unwrap();
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let builder = Pipeline::builder(&model, &trace, &plan);
    let report = compare_with_burn(builder, batch(), sum).unwrap();
    assert!(report.agrees() && report.micro_batches == 3, "{report}");
    let trace = model.trace(&batch(), 3, counted).unwrap();
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let builder = Pipeline::builder(&model, &trace, &plan);
    let report = compare_with_burn(builder, batch(), counted).unwrap();
    assert!(report.agrees() && report.micro_batches == 3, "{report}");
}
