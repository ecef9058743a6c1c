//! A Q-network and its target network in one model, as a loop of reinforcement learning has them: the target is a frozen
//! copy, and is set to the online network, or moved towards it, between steps.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Float, Int, Tensor, activation::relu};
use tinderbox::deferred::random::Seed;
use tinderbox::deferred::{independent_copy, parameter_values};
use tinderbox::{Checkpoints, Deferred, DynTensor, Machine, Outputs, Pipeline, Traceable};
use tinderbox_models::plain::{gradients, weighted};
use tinderbox_models::split::split;
use tinderbox_models::values::{floats, tokens};
use tinderbox_models::zoo::SAMPLES;

const WIDTH: usize = 6;
const ACTIONS: usize = 3;
const STEPS: u64 = 5;
const SAVED_AT: u64 = 2;
const RATE: f64 = 1e-2;
const DISCOUNT: f64 = 0.9;
const SEED: u64 = 9;

/// How the target follows the online network after each step.
#[derive(Clone, Copy, Debug)]
enum Update {
    /// Replaced after every so many steps.
    Hard(u64),
    /// Moved towards it by a fraction.
    Soft(f64),
}

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    norm: BatchNorm,
    last: Linear,
}

#[derive(Module, Debug)]
struct Dqn {
    online: Net,
    target: Net,
}

/// The online network alone, under the path that it has in [`Dqn`].
#[derive(Module, Debug)]
struct Alone {
    online: Net,
}

/// States and actions, rewards and next states.
type Transitions = ((Tensor<2>, Tensor<2, Int>), (Tensor<2>, Tensor<2>));

fn net(device: &Device) -> Net {
    Net {
        layers: (0..3)
            .map(|_| LinearConfig::new(WIDTH, WIDTH).init(device))
            .collect(),
        norm: BatchNormConfig::new(WIDTH).init(device),
        last: LinearConfig::new(WIDTH, ACTIONS).init(device),
    }
}

fn dqn(device: &Device) -> Dqn {
    let online = net(device);
    let target = independent_copy(&online).no_grad();
    Dqn { online, target }
}

impl Net {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let layers = self.layers.iter();
        let x = layers.fold(x, |x, layer| relu(layer.forward(x)));
        self.last.forward(self.norm.forward(x))
    }
}

fn loss(online: &Net, target: &Net, batch: Transitions) -> Tensor<1> {
    let ((states, actions), (rewards, next)) = batch;
    let value = online.forward(states).gather(1, actions);
    let best = target.forward(next).max_dim(1);
    let expected = (rewards + best * DISCOUNT).detach();
    (value - expected).powi_scalar(2).mean()
}

fn batch(step: u64, device: &Device) -> Transitions {
    let state = |number| floats([SAMPLES, WIDTH], number, device);
    (
        (
            state(step),
            tokens([SAMPLES, 1], ACTIONS, step + 100, device),
        ),
        (floats([SAMPLES, 1], step + 200, device), state(step + 300)),
    )
}

type Values = BTreeMap<String, Vec<u8>>;

fn values(prefix: &str, module: &impl Module) -> Values {
    let bytes = |value: DynTensor| value.to_data().unwrap().as_bytes().to_vec();
    let values = parameter_values(module).into_iter();
    values
        .map(|(path, value)| (format!("{prefix}{path}"), bytes(value)))
        .collect()
}

/// Moves the values of a module towards the values of another one, which are in its order.
struct Blend<'a> {
    towards: std::slice::Iter<'a, DynTensor>,
    fraction: f64,
}

impl ModuleMapper for Blend<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let towards = self.towards.next().unwrap().clone();
        let towards: Tensor<D> = towards.typed::<D, Float>().unwrap();
        param.map(|value| value * (1.0 - self.fraction) + towards * self.fraction)
    }
}

/// Plain Burn: two networks that were constructed one by one, with the same values.
fn plain(update: Update, micro_batches: usize) -> Values {
    let device = Device::flex().autodiff();
    let alone = Deferred::new(|device: &Device| Alone {
        online: net(device),
    })
    .unwrap();
    let initializer = alone.initializer(Seed::new(SEED));
    let network = || alone.materialize(&device, &initializer).unwrap().online;
    let (mut online, mut target) = (network(), network().no_grad());
    let mut optimizer = AdamWConfig::new().init();
    for step in 0..STEPS {
        let parts = split(&batch(step, &device), micro_batches);
        let summed = gradients(&online, weighted(parts, SAMPLES), |batch| {
            loss(&online, &target, batch)
        });
        online = optimizer.step(RATE, online, summed);
        // Outside of training, batch norms have applied their last update.
        let (current, mut follower) = (online.valid(), target.valid());
        match update {
            Update::Hard(steps) if (step + 1) % steps == 0 => {
                follower = follower.load_record(current.into_record());
            }
            Update::Hard(_) => {}
            Update::Soft(fraction) => {
                let towards = parameter_values(&current).into_iter();
                let towards: Vec<DynTensor> = towards.map(|(_, value)| value).collect();
                follower = follower.map(&mut Blend {
                    towards: towards.iter(),
                    fraction,
                });
            }
        }
        target = follower.train();
    }
    let mut all = values("online.", &online.valid());
    all.extend(values("target.", &target.valid()));
    all
}

fn start(stages: usize, micro_batches: usize) -> Pipeline<Dqn, Transitions> {
    let model = Deferred::new(dqn).unwrap();
    let trace = model
        .trace(
            &batch(0, &Device::flex()),
            micro_batches,
            |net: &Dqn, batch| Outputs::loss(loss(&net.online, &net.target, batch)),
        )
        .unwrap();
    let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
    Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .seed(SEED)
        .start()
        .unwrap()
}

/// A value that is moved towards another one.
fn blended<const D: usize>(value: DynTensor, towards: DynTensor, fraction: f64) -> DynTensor {
    let [value, towards]: [Tensor<D>; 2] =
        [value, towards].map(|value| value.typed::<D, Float>().unwrap());
    (value * (1.0 - fraction) + towards * fraction).into()
}

fn train(pipeline: &mut Pipeline<Dqn, Transitions>, update: Update, steps: Range<u64>) {
    let parameters = pipeline.model().parameters().clone();
    let online = parameters.iter().filter(|p| p.path.is_under("online"));
    let paths: Vec<&str> = online
        .map(|p| p.path.as_str().strip_prefix("online.").unwrap())
        .collect();
    for step in steps {
        pipeline.step(RATE, batch(step, &Device::flex())).unwrap();
        if matches!(update, Update::Hard(steps) if (step + 1) % steps != 0) {
            continue;
        }
        let mut new = Vec::new();
        for path in &paths {
            let online = pipeline.parameter(&format!("online.{path}")).unwrap();
            let target = format!("target.{path}");
            let value = match update {
                Update::Hard(_) => online,
                Update::Soft(fraction) => {
                    let value = pipeline.parameter(&target).unwrap();
                    match value.shape().num_dims() {
                        1 => blended::<1>(value, online, fraction),
                        _ => blended::<2>(value, online, fraction),
                    }
                }
            };
            new.push((target, value));
        }
        pipeline.set_parameters(new).unwrap();
    }
}

/// The settings in which a pipeline differs from plain Burn, in one run, and saved and resumed with another number of
/// stages.
pub fn differences() -> Vec<String> {
    let mut differences = Vec::new();
    let bits = |pipeline: &mut Pipeline<Dqn, Transitions>| {
        values("", &pipeline.gather(&Device::flex()).unwrap())
    };
    for update in [Update::Hard(2), Update::Soft(0.1)] {
        for micro_batches in [1, 4] {
            let expected = plain(update, micro_batches);
            for stages in 1..=4 {
                let others = stages % 4 + 1;
                let dir = tempfile::tempdir().unwrap();
                let saves = Checkpoints::open(dir.path()).unwrap().every(SAVED_AT);
                let mut first = start(stages, micro_batches);
                train(&mut first, update, 0..SAVED_AT);
                saves.after_step(&mut first, 0).unwrap().unwrap();
                train(&mut first, update, SAVED_AT..STEPS);
                let mut second = start(others, micro_batches);
                saves.resume(&mut second).unwrap().unwrap();
                train(&mut second, update, SAVED_AT..STEPS);
                for (mut run, what) in [(first, "in one run"), (second, "resumed")] {
                    let found = bits(&mut run);
                    let same =
                        |(path, value): &(&String, &Vec<u8>)| found.get(*path) == Some(value);
                    let differing = expected.iter().find(|entry| !same(entry));
                    if found.len() != expected.len() || differing.is_some() {
                        let path = differing.map(|(path, _)| path);
                        differences.push(format!(
                            "{update:?}, {stages} stages (then {others}), {micro_batches} micro-batches, {what}: {path:?}"
                        ));
                    }
                }
            }
        }
    }
    differences
}

/// Whether both networks begin with the same values, and differ after a step.
pub fn begin_equal_and_differ() -> [bool; 2] {
    let mut pipeline = start(2, 2);
    [0, 1].map(|steps| {
        for step in 0..steps {
            pipeline.step(RATE, batch(step, &Device::flex())).unwrap();
        }
        let net = pipeline.gather(&Device::flex()).unwrap();
        values("", &net.online) == values("", &net.target)
    })
}
