//! Programs that are run again alone, compared with the step that they belong to.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::activation::{gelu, tanh};
use burn::tensor::{Device, Tensor, TensorData};
use tinderbox_deferred::{Deferred, Values};
use tinderbox_fake::DynTensor;
use tinderbox_pipeline::{
    GradientSum, LossScale, Machine, Outputs, Pipeline, PipelineBuilder, PipelineError, Plan,
    Planner, ProgramDigest, ReplayDifference, ReplayedStep, Trace, Traceable,
    first_replay_difference,
};

use crate::support::{LR, SAMPLES, SEED, floats, squared};

const WIDTH: usize = 6;
const MICRO_BATCHES: usize = 4;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    norm: BatchNorm,
    dropout: Dropout,
}

type Pair = (Tensor<2>, Tensor<2>);

type Forward = fn(&Net, Pair) -> Outputs;

fn model() -> Deferred<Net> {
    let model = Deferred::new(|device: &Device| Net {
        layers: (0..6)
            .map(|_| LinearConfig::new(WIDTH, WIDTH).init(device))
            .collect(),
        norm: BatchNormConfig::new(WIDTH).init(device),
        dropout: DropoutConfig::new(0.2).init(),
    });
    model.unwrap()
}

fn layers(net: &Net, x: Tensor<2>) -> Tensor<2> {
    net.layers
        .iter()
        .fold(x, |x, layer| net.dropout.forward(gelu(layer.forward(x))))
}

/// The first weight is read by the last stage as well.
fn tied(net: &Net, (x, y): Pair) -> Outputs {
    let x = layers(net, x).matmul(net.layers[0].weight.val());
    Outputs::loss(squared(x, y))
}

/// The forward of a micro-batch updates the running states that the next one reads.
fn normed(net: &Net, (x, y): Pair) -> Outputs {
    Outputs::loss(squared(net.norm.forward(layers(net, x)), y))
}

/// Another activation between the third layer and the fourth.
fn another(net: &Net, (x, y): Pair) -> Outputs {
    let x = net.layers.iter().enumerate().fold(x, |x, (at, layer)| {
        let x = layer.forward(x);
        net.dropout.forward(match at {
            2 => tanh(x),
            _ => gelu(x),
        })
    });
    let x = x.matmul(net.layers[0].weight.val());
    Outputs::loss(squared(x, y))
}

fn batch(step: u64) -> Pair {
    let device = Device::flex();
    let shape = [SAMPLES, WIDTH];
    (
        floats(shape, step, &device),
        floats(shape, step + 1000, &device),
    )
}

fn trace(model: &Deferred<Net>, forward: Forward) -> Trace<Pair> {
    model.trace(&batch(0), forward).unwrap()
}

fn builder(model: &Deferred<Net>, trace: &Trace<Pair>, plan: &Plan) -> PipelineBuilder<Net, Pair> {
    Pipeline::new(model, trace, plan)
        .micro_batches(MICRO_BATCHES)
        .seed(SEED)
        .loss_scale(LossScale::fixed(8.0))
}

fn plans(trace: &Trace<Pair>) -> Vec<Plan> {
    let plan = |ranks| Plan::auto(trace, &Machine::local(ranks).unwrap()).unwrap();
    let recomputed = Planner::new(trace, &Machine::local(2).unwrap());
    let recomputed = recomputed.recompute(|_| true).plan().unwrap();
    vec![plan(1), plan(3), recomputed]
}

fn bytes(value: &DynTensor) -> Vec<u8> {
    value.to_data().unwrap().as_bytes().to_vec()
}

/// A step, as a pipeline of two stages trains it.
struct Step {
    /// The values before it.
    before: Values,
    losses: Vec<f64>,
    gradients: BTreeMap<String, Vec<u8>>,
    /// The values of running states after it.
    states: BTreeMap<String, Vec<u8>>,
}

/// The second step.
fn step(model: &Deferred<Net>, forward: Forward) -> Step {
    let trace = trace(model, forward);
    let plan = Plan::auto(&trace, &Machine::local(2).unwrap()).unwrap();
    let mut pipeline = builder(model, &trace, &plan)
        .optimizer(SgdConfig::new())
        .keep_gradients()
        .start()
        .unwrap();
    pipeline.step(LR, batch(0)).unwrap();
    let values = |pipeline: &mut Pipeline<Net, Pair>| {
        let paths = model.parameters().iter().map(|one| one.path.clone());
        let values = paths.map(|path| {
            let value = pipeline.parameter(path.as_str()).unwrap();
            (path, value)
        });
        values.collect::<Vec<_>>()
    };
    let before = values(&mut pipeline).into_iter().collect();
    let losses = pipeline.step(LR, batch(1)).unwrap().micro_batch_losses;
    let gradients = pipeline.on_ranks(|_, stages| {
        let gradients = stages.iter().flat_map(|stage| stage.gradients());
        let data = gradients.map(|(path, value)| (path.to_string(), value.clone()));
        data.collect::<Vec<_>>()
    });
    let gradients = gradients.unwrap().into_iter().flatten();
    let after = values(&mut pipeline).into_iter();
    let states = after.filter(|(path, _)| path.as_str().contains("running"));
    Step {
        before,
        losses,
        gradients: gradients
            .map(|(path, value)| (path, bytes(&value)))
            .collect(),
        states: states
            .map(|(path, value)| (path.to_string(), bytes(&value)))
            .collect(),
    }
}

/// Losses and summed gradients of replays equal those of the step, bit for bit, under any plan.
#[test]
fn values_are_those_of_the_step() {
    let model = model();
    for (forward, states) in [(tied as Forward, 0), (normed, 2)] {
        let expected = step(&model, forward);
        assert_eq!(expected.states.len(), 2);
        let trace = trace(&model, forward);
        for plan in plans(&trace) {
            let mut sums: BTreeMap<String, DynTensor> = BTreeMap::new();
            let mut new_states = BTreeMap::new();
            for micro_batch in 0..MICRO_BATCHES {
                let at = ReplayedStep {
                    step: 1,
                    micro_batch,
                };
                let builder = builder(&model, &trace, &plan).source(expected.before.clone());
                let programs: Vec<_> = builder.replay(at, batch(1)).unwrap().collect();
                assert_eq!(programs.len(), 2 * plan.stages().len());
                for program in programs {
                    for (name, value) in program.unwrap().outputs {
                        let of =
                            |start| Some(name.strip_prefix(start)?.strip_suffix('`')?.to_owned());
                        if name == "loss" {
                            let loss = value.to_data().unwrap().iter::<f64>().next().unwrap();
                            assert_eq!(loss, expected.losses[micro_batch]);
                        } else if let Some(path) = of("gradient of `") {
                            let sum = match sums.remove(&path) {
                                Some(sum) => sum + value,
                                None => value,
                            };
                            sums.insert(path, sum);
                        } else if let Some(path) = of("new value of `") {
                            new_states.insert(path, bytes(&value));
                        }
                    }
                }
            }
            // Those of the step were divided by the loss scale, a power of two.
            let scale = Tensor::<1>::from_floats([0.125], &Device::flex());
            let unscaled = |value: DynTensor| {
                let shape = value.shape();
                let data = value.to_data().unwrap();
                let flat =
                    TensorData::new(data.try_to_vec::<f32>().unwrap(), [shape.num_elements()]);
                let flat = Tensor::<1>::from_data(flat, &Device::flex()) * scale.clone();
                flat.into_data().as_bytes().to_vec()
            };
            let sums: BTreeMap<String, Vec<u8>> = sums
                .into_iter()
                .map(|(path, sum)| (path, unscaled(sum)))
                .collect();
            assert!(sums.len() >= 12);
            assert_eq!(sums, expected.gradients);
            assert_eq!(new_states.len(), states);
            assert!(states == 0 || new_states == expected.states);
        }
    }
}

fn replayed(
    model: &Deferred<Net>,
    trace: &Trace<Pair>,
    plan: &Plan,
    values: &Values,
) -> Vec<ProgramDigest> {
    let digests = (0..MICRO_BATCHES).flat_map(|micro_batch| {
        let at = ReplayedStep {
            step: 1,
            micro_batch,
        };
        let builder = builder(model, trace, plan)
            .gradient_sum(GradientSum::Tree(4))
            .source(values.clone());
        let replay = builder.replay(at, batch(1)).unwrap();
        replay.map(|program| program.unwrap().digest)
    });
    digests.collect()
}

/// Digests do not depend on the plan. Of two replays that differ, the first operation is found.
#[test]
fn the_first_difference_is_found() {
    let model = model();
    let before = step(&model, tied).before;
    let of_tied = trace(&model, tied);
    let plans = plans(&of_tied);
    let first = replayed(&model, &of_tied, &plans[0], &before);
    let with_replicas = Plan::auto(&of_tied, &Machine::local(2).unwrap())
        .unwrap()
        .replicas(2);
    for plan in plans.iter().chain([&with_replicas]) {
        let other = replayed(&model, &of_tied, plan, &before);
        assert_eq!(
            first_replay_difference(&first, &other),
            (MICRO_BATCHES, None)
        );
    }
    // A bit of a weight.
    let mut pairs = Vec::new();
    let parameters = model.parameters().iter();
    let pipeline = Pipeline::new(&model, &of_tied, &plans[0]).source(before.clone());
    let mut pipeline = pipeline.start().unwrap();
    for path in parameters.map(|one| one.path.clone()) {
        let value = pipeline.parameter(path.as_str()).unwrap();
        let value = match path.as_str() == "layers.3.weight" {
            true => {
                let mut data = value.to_data().unwrap().try_to_vec::<f32>().unwrap();
                data[7] = f32::from_bits(data[7].to_bits() ^ 1);
                DynTensor::from_data(TensorData::new(data, [WIDTH, WIDTH]), &Device::flex())
            }
            false => value,
        };
        pairs.push((path, value));
    }
    let changed: Values = pairs.into_iter().collect();
    let other = replayed(&model, &of_tied, &plans[1], &changed);
    let (common, found) = first_replay_difference(&first, &other);
    let ReplayDifference {
        step,
        micro_batch,
        inputs,
        operations,
    } = found.unwrap();
    assert_eq!((common, step, micro_batch), (MICRO_BATCHES, 1, 0));
    assert_eq!(inputs, ["layers.3.weight"]);
    let [one, two] = operations.map(Option::unwrap);
    assert_eq!((&one.name, one.position), (&two.name, two.position));
    assert_ne!(one.digest, two.digest);
    assert_eq!(one.place.as_deref(), Some("in `layers.3`"));
    // Another operation.
    let of_another = trace(&model, another);
    let plan = Plan::auto(&of_another, &Machine::local(2).unwrap()).unwrap();
    let other = replayed(&model, &of_another, &plan, &before);
    let found = first_replay_difference(&first, &other).1.unwrap();
    assert!(found.inputs.is_empty());
    let [one, two] = found.operations.map(Option::unwrap);
    assert_eq!(two.name, "Float.Tanh");
    assert_ne!(one.name, two.name);
    assert_eq!(one.place.as_deref(), Some("in or after `layers.2`"));
}

/// Every operation's result can be looked at, and asking for fewer programs runs fewer.
#[test]
fn results_are_looked_at() {
    let model = model();
    let trace = trace(&model, tied);
    let plan = Plan::auto(&trace, &Machine::local(2).unwrap()).unwrap();
    let (send, seen) = std::sync::mpsc::channel();
    let replay = builder(&model, &trace, &plan).replay(ReplayedStep::default(), batch(0));
    let replay = replay.unwrap().look(move |operation, value| {
        send.send((operation.to_string(), value.shape())).unwrap();
    });
    let first: Vec<_> = replay.take(1).map(Result::unwrap).collect();
    let seen: Vec<_> = seen.try_iter().collect();
    assert_eq!(seen.len(), first[0].digest.operations.len());
    let product = seen
        .iter()
        .find(|(name, _)| name.starts_with("`Float.Matmul` in `layers.0`"));
    assert_eq!(
        product.unwrap().1.as_slice(),
        [SAMPLES / MICRO_BATCHES, WIDTH]
    );
    let inputs = first[0].inputs.iter().map(|(name, _)| name.as_str());
    let inputs: Vec<&str> = inputs.collect();
    assert!(inputs.contains(&"layers.0.weight"), "{inputs:?}");
}

#[test]
fn what_can_not_be_replayed_is_refused() {
    let model = model();
    let of_tied = trace(&model, tied);
    let plan = Plan::auto(&of_tied, &Machine::local(2).unwrap()).unwrap();
    let at = ReplayedStep {
        step: 0,
        micro_batch: 4,
    };
    let error = builder(&model, &of_tied, &plan).replay(at, batch(0));
    insta::assert_snapshot!(error.unwrap_err(), @"there is no micro-batch 4: the batch is split into 4, numbered from 0");
    let forward = model.trace_forward(&batch(0), tied as Forward).unwrap();
    let error = builder(&model, &forward, &plan).replay(ReplayedStep::default(), batch(0));
    assert!(matches!(error, Err(PipelineError::ForwardTrace)));
}
