//! Programs that are run again alone, compared with the step that they belong to.

use std::collections::BTreeMap;
use std::error::Error;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::activation::{gelu, tanh};
use burn::tensor::{DType, Device, Tensor, TensorData};
use tinderbox_deferred::{Deferred, ParameterPath, Values};
use tinderbox_fake::DynTensor;
use tinderbox_pipeline::schedule::Compute;
use tinderbox_pipeline::{
    GradientSum, LossScale, Machine, MixedPrecision, Outputs, Pipeline, PipelineBuilder,
    PipelineError, Plan, Planner, ProgramDigest, ReplayComparison, ReplayDifference, StartError,
    Trace, Traceable,
};
use tinderbox_pipeline_tests::{LR, SAMPLES, SEED, floats, squared};

const WIDTH: usize = 6;
const MICRO_BATCHES: usize = 4;
const SCALE: f64 = 8.0;

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

/// The loss is a mean over what the batch counts, and micro-batches count differently.
fn counted(net: &Net, (x, y): Pair) -> Outputs {
    let count = y.clone().greater_elem(0.0).float().sum();
    let x = layers(net, x);
    let sum = (x - y.clone())
        .powi_scalar(2)
        .mul(y.greater_elem(0.0).float())
        .sum();
    Outputs::loss(sum / count.clone()).weighted_by(count)
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
    model.trace(&batch(0), MICRO_BATCHES, forward).unwrap()
}

/// A trace whose forward is in bf16.
fn mixed_trace(model: &Deferred<Net>, forward: Forward) -> Trace<Pair> {
    MixedPrecision::bf16(model)
        .trace(&batch(0), MICRO_BATCHES, forward)
        .unwrap()
}

fn builder(model: &Deferred<Net>, trace: &Trace<Pair>, plan: &Plan) -> PipelineBuilder<Net, Pair> {
    Pipeline::builder(model, trace, plan)
        .seed(SEED)
        .loss_scale(LossScale::fixed(SCALE))
}

fn plans(trace: &Trace<Pair>) -> Vec<Plan> {
    let plan = |ranks| trace.plan(&Machine::local(ranks).unwrap()).unwrap();
    let recomputed = Planner::new(trace, &Machine::local(2).unwrap());
    let recomputed = recomputed.recompute(|_| true).plan().unwrap();
    vec![plan(1), plan(3), recomputed]
}

/// A step, as a pipeline of two stages trains it.
struct Step {
    /// The values before it.
    before: Values,
    losses: Vec<f64>,
    gradients: BTreeMap<String, Vec<f64>>,
    /// The values of running states after it.
    states: BTreeMap<String, Vec<f64>>,
}

fn floats_of(value: &DynTensor) -> Vec<f64> {
    value.to_data().unwrap().iter::<f64>().collect()
}

fn values(pipeline: &mut Pipeline<Net, Pair>) -> Vec<(ParameterPath, DynTensor)> {
    let table = pipeline.model().parameters().clone();
    let paths = table.iter().map(|one| one.path.clone());
    let values = paths.map(|path| {
        let value = pipeline.parameter(path.as_str()).unwrap();
        (path, value)
    });
    values.collect()
}

/// The second step, with one batch or with two.
fn step(model: &Deferred<Net>, trace: &Trace<Pair>, batches: &[Pair]) -> Step {
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let mut pipeline = builder(model, trace, &plan)
        .optimizer(SgdConfig::new())
        .keep_gradients()
        .start()
        .unwrap();
    pipeline.step(LR, batch(0)).unwrap();
    let before = values(&mut pipeline).into_iter().collect();
    let output = pipeline.step_accumulated(LR, batches.to_vec()).unwrap();
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
        losses: output.micro_batch_losses,
        gradients: gradients
            .map(|(path, value)| (path, floats_of(&value)))
            .collect(),
        states: states
            .map(|(path, value)| (path.to_string(), floats_of(&value)))
            .collect(),
    }
}

/// Replays the second step, and compares it: all micro-batches, or each alone.
fn check(model: &Deferred<Net>, trace: &Trace<Pair>, batches: &[Pair], updates: usize) {
    let expected = step(model, trace, batches);
    for plan in plans(trace) {
        let replay = || {
            let builder = builder(model, trace, &plan).source(expected.before.clone());
            builder.replay_accumulated(1, batches.to_vec()).unwrap()
        };
        let count = replay().micro_batches();
        assert_eq!(count, expected.losses.len());
        let alone = (0..count).map(|micro_batch| replay().only(micro_batch).unwrap());
        let mut digests: Vec<Vec<ProgramDigest>> = Vec::new();
        for replays in [vec![replay()], alone.collect()] {
            let (mut sums, mut states) = (BTreeMap::new(), BTreeMap::new());
            let (mut losses, mut all) = (BTreeMap::new(), Vec::new());
            for program in replays.into_iter().flatten() {
                let program = program.unwrap();
                for (name, value) in program.outputs {
                    let of = |start| Some(name.strip_prefix(start)?.strip_suffix('`')?.to_owned());
                    if name == "loss" {
                        losses.insert(program.digest.micro_batch, floats_of(&value)[0]);
                    } else if let Some(path) = of("gradient of `") {
                        let own = value.cast_float(DType::F32);
                        let sum = match sums.remove(&path) {
                            Some(sum) => sum + own,
                            None => own,
                        };
                        sums.insert(path, sum);
                    } else if let Some(path) = of("new value of `") {
                        states.insert(path, floats_of(&value));
                    }
                }
                all.push(program.digest);
            }
            digests.push(all);
            assert!(losses.into_values().eq(expected.losses.iter().copied()));
            // The scale is a power of two.
            let unscaled = sums.into_iter().map(|(path, sum): (String, DynTensor)| {
                let numbers = floats_of(&sum).into_iter().map(|one| one / SCALE);
                (path, numbers.collect())
            });
            assert!(expected.gradients.len() >= 12);
            assert_eq!(
                unscaled.collect::<BTreeMap<_, Vec<f64>>>(),
                expected.gradients
            );
            assert_eq!(states.len(), updates);
            assert!(updates == 0 || states == expected.states);
        }
        let equal = ReplayComparison {
            micro_batches: count,
            only_in_one: 0,
            difference: None,
            numerics: Vec::new(),
        };
        assert_eq!(ReplayComparison::of(&digests[0], &digests[1]), equal);
    }
}

/// Losses and summed gradients of replays equal the step's, bit for bit, under any plan.
#[test]
fn values_are_those_of_the_step() {
    let model = model();
    let whole = [batch(1)];
    check(&model, &trace(&model, tied), &whole, 0);
    check(&model, &trace(&model, normed), &whole, 2);
    check(&model, &trace(&model, counted), &whole, 0);
    check(&model, &mixed_trace(&model, tied), &whole, 0);
    // Micro-batches of two sizes, fewer samples than micro-batches, and two batches.
    let part = |step, samples| {
        let (x, y) = batch(step);
        (x.narrow(0, 0, samples), y.narrow(0, 0, samples))
    };
    check(&model, &trace(&model, tied), &[part(1, 7)], 0);
    check(&model, &trace(&model, normed), &[part(1, 7)], 2);
    check(&model, &trace(&model, tied), &[part(1, 3)], 0);
    check(&model, &trace(&model, tied), &[batch(1), part(2, 6)], 0);
}

fn replayed(
    model: &Deferred<Net>,
    trace: &Trace<Pair>,
    plan: &Plan,
    values: &Values,
) -> Vec<ProgramDigest> {
    let builder = builder(model, trace, plan)
        .gradient_sum(GradientSum::Tree(4))
        .source(values.clone());
    let replay = builder.replay(1, batch(1)).unwrap();
    let left = replay.programs_left();
    let digests: Vec<_> = replay.map(|program| program.unwrap().digest).collect();
    assert_eq!(digests.len(), left);
    digests
}

/// Digests do not depend on the plan. Of two replays that differ, the first operation is found.
#[test]
fn the_first_difference_is_found() {
    let model = model();
    let of_tied = trace(&model, tied);
    let before = step(&model, &of_tied, &[batch(1)]).before;
    let plans = plans(&of_tied);
    let first = replayed(&model, &of_tied, &plans[0], &before);
    let with_replicas = Planner::new(&of_tied, &Machine::local(4).unwrap());
    let with_replicas = with_replicas.replicas(2).plan().unwrap();
    for plan in plans.iter().chain([&with_replicas]) {
        let other = replayed(&model, &of_tied, plan, &before);
        let found = ReplayComparison::of(&first, &other);
        assert_eq!(
            (found.micro_batches, found.difference),
            (MICRO_BATCHES, None)
        );
    }
    // A bit of a weight.
    let mut pairs = Vec::new();
    let parameters = model.parameters().iter();
    let pipeline = Pipeline::builder(&model, &of_tied, &plans[0]).source(before.clone());
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
    let ReplayDifference {
        step,
        micro_batch,
        inputs,
        operations,
    } = ReplayComparison::of(&first, &other).difference.unwrap();
    assert_eq!((step, micro_batch.index()), (2, 0));
    assert_eq!(inputs, ["layers.3.weight"]);
    let [one, two] = operations.map(Option::unwrap);
    assert_eq!((&one.name, one.position), (&two.name, two.position));
    assert_ne!(one.digest, two.digest);
    assert_eq!(one.place.as_deref(), Some("in `layers.3`"));
    // One result of a stage that computes its forward again, and another one the second time.
    let mut unstable = replayed(&model, &of_tied, &plans[2], &before);
    let backward = unstable.iter_mut().rev().find(|program| {
        let first = &first[0].operations;
        program.compute == Compute::Backward
            && program.operations.iter().any(|one| first.contains(one))
    });
    let repeated = backward.unwrap().operations.iter_mut();
    let repeated = repeated.min_by_key(|one| one.position).unwrap();
    repeated.digest ^= 1;
    let position = repeated.position;
    let found = ReplayComparison::of(&first, &unstable).difference.unwrap();
    let [_, other] = found.operations.map(Option::unwrap);
    assert_eq!(other.position, position);
    // Another operation.
    let of_another = trace(&model, another);
    let plan = of_another.plan(&Machine::local(2).unwrap()).unwrap();
    let other = replayed(&model, &of_another, &plan, &before);
    let found = ReplayComparison::of(&first, &other).difference.unwrap();
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
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let (send, seen) = std::sync::mpsc::channel();
    let replay = builder(&model, &trace, &plan).replay(0, batch(0));
    let replay = replay.unwrap().only(2).unwrap();
    let replay = replay.on_operation(move |operation, value| {
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
    let plan = of_tied.plan(&Machine::local(2).unwrap()).unwrap();
    let replay = |step| builder(&model, &of_tied, &plan).replay(step, batch(0));
    let error = replay(0).unwrap().only(4).unwrap_err();
    insta::assert_snapshot!(error.source().unwrap(), @"there is no micro-batch 4: the step has 4, numbered from 0");
    insta::assert_snapshot!(replay(3).unwrap_err(), @"a step after 3 others is replayed from a checkpoint: set it as the `source`");
    let other = builder(&model, &of_tied, &plan)
        .source(Values::default())
        .replay(3, batch(0));
    assert!(matches!(
        other,
        Err(PipelineError::Start(StartError::Materialize { .. }))
    ));
    let forward = model.trace_forward(&batch(0), tied as Forward).unwrap();
    let error = builder(&model, &forward, &plan).replay(0, batch(0));
    assert!(matches!(
        error,
        Err(PipelineError::Start(StartError::ForwardTrace))
    ));
}
