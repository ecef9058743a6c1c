//! Comparison of a step in plain Burn with one in the pipeline.

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{Device, Distribution, Tensor};
use tinderbox::{
    Cut, Deferred, GradientComparison, Machine, Outputs, Plan, Trace, Traceable, VerifyOptions,
    verify, verify_with,
};

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

fn planned(model: &Deferred<Net>) -> (Trace<Pair>, Plan) {
    let trace = model.trace(&batch(), forward).unwrap();
    let plan = Plan::manual(&trace, &[Cut::before("layers.1"), Cut::before("layers.3")]).unwrap();
    (trace, plan)
}

#[test]
fn a_model_agrees_with_plain_burn() {
    let model = model(0.0);
    let (trace, plan) = planned(&model);
    let options = VerifyOptions::new()
        .seed(5)
        .micro_batches(4)
        .tolerance(1e-5);
    let report = verify_with(&model, &trace, &plan, batch(), forward, &options).unwrap();
    assert!(report.agrees(), "{report}");
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
    let options = VerifyOptions::new().micro_batches(1);
    let report = verify_with(&model, &trace, &plan, batch(), forward, &options).unwrap();
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
    let (trace, plan) = planned(&model);
    let other = |net: &Net, (x, y): Pair| {
        let step = |x, layer: &Linear| gelu(layer.forward(x));
        let made = net.layers.iter().fold(x, step);
        // Neither the scale nor the bias of the last layer contributes.
        let last = net.layers[3].bias.as_ref().unwrap().val();
        Outputs::loss((made - y).powi_scalar(2).mean() + last.sum() * 0.1)
    };
    let report = verify(&model, &trace, &plan, batch(), other).unwrap();
    assert!(!report.agrees());
    let named: Vec<&str> = report.differing().map(|p| p.path.as_str()).collect();
    assert_eq!(named, ["layers.3.bias", "scale"]);
    let scale = report.differing().last().unwrap();
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
    let (trace, plan) = planned(&model);
    let report = verify(&model, &trace, &plan, batch(), forward).unwrap();
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
    let trace = model.trace(&batch(), forward).unwrap();
    let plan = Plan::auto(&trace, &Machine::local(1).unwrap()).unwrap();
    let options = VerifyOptions::new().micro_batches(4);
    let report = verify_with(&model, &trace, &plan, batch(), forward, &options).unwrap();
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
    let (trace, plan) = planned(&model);
    let few = || {
        let (x, y) = batch();
        (x.narrow(0, 0, 3), y.narrow(0, 0, 3))
    };
    let options = VerifyOptions::new().micro_batches(4).tolerance(1e-5);
    let report = verify_with(&model, &trace, &plan, few(), forward, &options).unwrap();
    assert!(report.agrees(), "{report}");
}

#[derive(Module, Debug)]
struct Normed {
    first: Linear,
    norm: BatchNorm,
    last: Linear,
}

/// Statistics of micro-batches are not the statistics of the batch: without a number, one micro-batch is compared.
#[test]
fn a_model_with_batch_norm_agrees_in_one_micro_batch() {
    let model = Deferred::new(|device| Normed {
        first: LinearConfig::new(6, 6).init(device),
        norm: BatchNormConfig::new(6).init(device),
        last: LinearConfig::new(6, 6).init(device),
    })
    .unwrap();
    let forward = |net: &Normed, (x, y): Pair| {
        let x = gelu(net.norm.forward(net.first.forward(x)));
        Outputs::loss((net.last.forward(x) - y).powi_scalar(2).mean())
    };
    let trace = model.trace(&batch(), forward).unwrap();
    let plan = Plan::auto(&trace, &Machine::local(2).unwrap()).unwrap();
    assert!(plan.file().step.micro_batches > 1);
    let report = verify(&model, &trace, &plan, batch(), forward).unwrap();
    assert!(report.agrees(), "{report}");
    let split = VerifyOptions::new().micro_batches(4);
    let report = verify_with(&model, &trace, &plan, batch(), forward, &split).unwrap();
    assert!(!report.agrees(), "{report}");
}
