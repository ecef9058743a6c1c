//! Compares models with unusual features with plain Burn: any number of stages, more stages than
//! micro-batches, both schedules.

use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig, RotaryEncoding, RotaryEncodingConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::{gelu, tanh};
use burn::tensor::{Bool, Device, Distribution, Int, Tensor};
use tinderbox_deferred::{Deferred, random::Seed};
use tinderbox_pipeline::{Machine, Outputs, Pipeline, Traceable};
use tinderbox_pipeline_tests::{
    Case, Computed, Run, SAMPLES, SEED, Setting, floats, parameters, pipelined, plain, settings,
    squared,
};

const WIDTH: usize = 6;
const STEPS: u64 = 3;
const STAGES: [usize; 3] = [2, 3, 4];
const COUNTS: [usize; 4] = [1, 2, 5, 8];

type Pair = (Tensor<2>, Tensor<2>);

fn pair(number: u64, device: &Device) -> Pair {
    let shape = [SAMPLES, WIDTH];
    (
        floats(shape, number, device),
        floats(shape, number + 1000, device),
    )
}

fn linears(count: usize, device: &Device) -> Vec<Linear> {
    (0..count)
        .map(|_| LinearConfig::new(WIDTH, WIDTH).init(device))
        .collect()
}

fn row(device: &Device) -> Param<Tensor<2>> {
    let shape = [1, WIDTH];
    Param::from_tensor(Tensor::random(shape, Distribution::Default, device))
}

/// Compares with plain Burn; returns the results.
fn check<M: Module + Sync + 'static>(
    init: fn(&Device) -> M,
    forward: fn(&M, Pair) -> Computed,
) -> Run {
    let batch = pair;
    let case = Case {
        init,
        forward,
        batch,
    };
    let mut last = Run::default();
    for count in COUNTS {
        let expected = plain(case, AdamWConfig::new().init(), count, STEPS);
        for setting in settings(STAGES, count) {
            let found = pipelined(case, AdamWConfig::new().build(), setting, STEPS);
            found.assert_same(&expected, &format!("{setting:?}"));
        }
        last = expected;
    }
    last
}

/// The bits of a new model.
fn fresh<M: Module + Sync + 'static>(init: fn(&Device) -> M) -> Vec<(String, Vec<u8>)> {
    let model = Deferred::new(init).unwrap();
    let initializer = model.initializer(Seed::new(SEED));
    let module = model.materialize(&Device::flex(), &initializer).unwrap();
    parameters(&module).into_iter().collect()
}

/// The paths of the parameters that training did not change.
fn unchanged<M: Module + Sync + 'static>(run: &Run, init: fn(&Device) -> M) -> Vec<String> {
    let same = |(path, value): &(String, Vec<u8>)| run.parameters[path] == *value;
    let found = fresh(init).into_iter().filter(same);
    found.map(|(path, _)| path).collect()
}

#[derive(Module, Debug)]
struct Plain {
    layers: Vec<Linear>,
}

#[test]
fn a_frozen_module_in_the_middle() {
    let init = |device: &Device| {
        let mut layers = linears(5, device);
        layers[2] = layers[2].clone().no_grad();
        Plain { layers }
    };
    let run = check(init, |net, (x, y)| {
        let x = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
        (squared(x.clone(), y), Some(x))
    });
    assert_eq!(unchanged(&run, init), ["layers.2.bias", "layers.2.weight"]);
}

#[test]
fn a_frozen_beginning_leaves_stages_without_gradients() {
    let init = |device: &Device| {
        let mut layers = linears(5, device);
        for layer in &mut layers[..4] {
            *layer = layer.clone().no_grad();
        }
        Plain { layers }
    };
    let run = check(init, |net, (x, y)| {
        let x = net.layers.iter().fold(x, |x, layer| tanh(layer.forward(x)));
        (squared(x, y), None)
    });
    assert_eq!(unchanged(&run, init).len(), 8);
}

/// The memory of a measured step equals the costs of the pipeline: trained parameters have gradients, frozen ones have not.
#[test]
fn costs_count_no_gradients_of_frozen_parameters() {
    let model = Deferred::new(|device: &Device| {
        let mut layers = linears(3, device);
        layers[2] = layers[2].clone().no_grad();
        Plain { layers }
    });
    let (model, batch) = (model.unwrap(), pair(0, &Device::flex()));
    let trace = model.trace(&batch, 1, |net: &Plain, (x, y)| {
        let x = net.layers.iter().fold(x, |x, layer| layer.forward(x));
        Outputs::loss((x - y).powf_scalar(2.0).mean())
    });
    let trace = trace.unwrap();
    let plan = trace.plan(&Machine::local(1).unwrap()).unwrap();
    let pipeline = Pipeline::builder(&model, &trace, &plan).optimizer(AdamWConfig::new());
    let mut pipeline = pipeline.measure().start().unwrap();
    let (_, costs) = pipeline.costs(&batch).unwrap();
    let layer = ((WIDTH * WIDTH + WIDTH) * 4) as u64;
    assert_eq!(costs.stages[0].resident_bytes, 5 * layer);
    let measured = pipeline.step(0.1, batch).unwrap().timeline.unwrap();
    let held: Vec<u64> = measured.ranks[0].bytes.iter().map(|(_, b)| *b).collect();
    assert!(held.contains(&(5 * layer)), "{held:?}");
}

#[derive(Module, Debug)]
struct Mixed {
    order: Param<Tensor<1, Int>>,
    layers: Vec<Linear>,
    keep: Param<Tensor<2, Bool>>,
    unread: Linear,
    last: Linear,
}

/// Ints and booleans are parameters too; the last one is never read.
#[test]
fn parameters_without_gradients_are_kept_and_gathered() {
    let init = |device: &Device| Mixed {
        order: Param::initialized(
            ParamId::new(),
            Tensor::from_ints([3, 1, 0, 2, 5, 4], device),
        ),
        layers: linears(3, device),
        keep: Param::initialized(
            ParamId::new(),
            Tensor::from_bool([[true, false, true, true, false, true]], device),
        ),
        unread: LinearConfig::new(3, 3).init(device),
        last: LinearConfig::new(WIDTH, WIDTH).init(device),
    };
    let run = check(init, |net, (x, y)| {
        let x = x.select(1, net.order.val());
        let x = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
        let keep = net.keep.val().expand(x.dims());
        let x = net.last.forward(x.mask_fill(keep.bool_not(), 0.0));
        (squared(x.clone(), y), Some(x))
    });
    assert_eq!(
        unchanged(&run, init),
        ["keep", "order", "unread.bias", "unread.weight"]
    );
}

#[derive(Module, Debug)]
struct Rotary {
    layers: Vec<Linear>,
    rotary: RotaryEncoding,
}

#[test]
fn a_plain_tensor_field() {
    check(
        |device| Rotary {
            layers: linears(4, device),
            rotary: RotaryEncodingConfig::new(SAMPLES, WIDTH).init(device),
        },
        |net, (x, y)| {
            let mut x = x;
            for layer in &net.layers {
                let [samples, width] = x.dims();
                let turned = net.rotary.forward(x.reshape([samples, 1, width]));
                x = layer.forward(turned.reshape([samples, width]));
            }
            (squared(x, y), None)
        },
    );
}

#[derive(Module, Debug)]
struct Optional {
    first: Linear,
    adapter: Option<Linear>,
    missing: Option<Linear>,
    layers: Vec<Linear>,
}

#[test]
fn an_optional_branch() {
    check(
        |device| Optional {
            first: LinearConfig::new(WIDTH, WIDTH).init(device),
            adapter: Some(LinearConfig::new(WIDTH, WIDTH).init(device)),
            missing: None,
            layers: linears(3, device),
        },
        |net, (x, y)| {
            let mut x = net.first.forward(x);
            for branch in [&net.adapter, &net.missing].into_iter().flatten() {
                x = x.clone() + branch.forward(x);
            }
            let x = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
            (squared(x, y), None)
        },
    );
}

#[test]
fn two_losses() {
    check(
        |device| Plain {
            layers: linears(5, device),
        },
        |net, (x, y)| {
            let early = gelu(net.layers[0].forward(x));
            let late = net.layers[1..]
                .iter()
                .fold(early.clone(), |x, layer| gelu(layer.forward(x)));
            let auxiliary = squared(early, y.clone()).mul_scalar(0.3);
            (squared(late.clone(), y) + auxiliary, Some(late))
        },
    );
}

#[derive(Module, Debug)]
struct Shared {
    shared: Linear,
    layers: Vec<Linear>,
}

#[test]
fn a_parameter_that_many_stages_read() {
    check(
        |device| Shared {
            shared: LinearConfig::new(WIDTH, WIDTH).init(device),
            layers: linears(4, device),
        },
        |net, (x, y)| {
            let step = |x, layer: &Linear| gelu(layer.forward(tanh(net.shared.forward(x))));
            (squared(net.layers.iter().fold(x, step), y), None)
        },
    );
}

#[derive(Module, Debug)]
struct Rows {
    first: Linear,
    p: Param<Tensor<2>>,
    middle: Linear,
    q: Param<Tensor<2>>,
    last: Linear,
}

fn rows(device: &Device) -> Rows {
    Rows {
        first: LinearConfig::new(WIDTH, WIDTH).init(device),
        p: row(device),
        middle: LinearConfig::new(WIDTH, WIDTH).init(device),
        q: row(device),
        last: LinearConfig::new(WIDTH, WIDTH).init(device),
    }
}

/// With one sample nothing is broadcast, so `p`, `q` and the sum between them have the same gradient,
/// across stages.
#[test]
fn one_value_is_the_gradient_of_parameters_on_several_stages() {
    check(rows, |net, (x, y)| {
        let x = net.first.forward(x) + net.p.val();
        let x = (x.clone() + gelu(net.middle.forward(x.detach()))) + net.q.val();
        (squared(net.last.forward(x * 2.0), y), None)
    });
}

/// `p` belongs to the first stage, which reads it without a gradient; its gradient is computed where
/// the last stage adds it, and is the gradient of an activation too.
#[test]
fn a_gradient_for_others_is_not_computed_at_a_lower_stage() {
    check(rows, |net, (x, y)| {
        let x = net.first.forward(x) * net.p.val().detach();
        let x = gelu(net.middle.forward(x)) + net.q.val();
        let x = (x + net.p.val()) * 3.0;
        (squared(net.last.forward(x), y), None)
    });
}

/// Noise on the input and on activations: keyed by seed, step, micro-batch and operation. The reference
/// is one stage.
#[test]
fn random_values_in_the_forward() {
    fn noisy(net: &Plain, (x, y): Pair) -> Computed {
        let noise = |x: Tensor<2>| x.random_like(Distribution::Normal(0.0, 0.5)) + x;
        let mut x = noise(x);
        for layer in &net.layers {
            let x_next = layer.forward(x);
            let scale = x_next.random_like(Distribution::Uniform(0.5, 1.5));
            x = noise(gelu(x_next)) * scale;
        }
        (squared(x.clone(), y), Some(x))
    }
    let case = Case {
        init: |device| Plain {
            layers: linears(4, device),
        },
        forward: noisy,
        // The same batch in every step, so that only the noise differs.
        batch: |_, device| pair(0, device),
    };
    for count in [1, 5] {
        let single = Setting {
            stages: 1,
            ..settings([1], count)[0]
        };
        let run = |setting| pipelined(case, AdamWConfig::new().build(), setting, STEPS);
        let expected = run(single);
        assert_ne!(expected.outputs[0], expected.outputs[1], "steps differ");
        for setting in settings(STAGES, count) {
            run(setting).assert_same(&expected, &format!("{setting:?}"));
        }
    }
}
