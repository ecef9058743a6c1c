//! Random networks: layers read once, twice or never, sums and products of any earlier values, detached parts
//! of the forward, noise drawn in the middle. Each is cut at random and compared with plain Burn, or with its
//! uncut graph if it draws random values.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{Device, Distribution, Tensor};
use tinderbox::error::PlanError;
use tinderbox::planner::PlannerError;
use tinderbox::{Machine, Outputs, ScheduleKind};

use crate::models::{Case, SAMPLES, deferred, floats, noise, trace};
use crate::parity::{assert_same, micro_batches, run};
use crate::{plain, uncut};

const WIDTH: usize = 6;
const LAYERS: usize = 8;

/// An operation on earlier values, by index; value 0 is the input.
#[derive(Clone, Debug)]
enum Op {
    Linear(usize, usize),
    Norm(usize, usize),
    Gelu(usize),
    Softmax(usize),
    Add(usize, usize),
    Multiply(usize, usize),
    AddDetached(usize, usize),
    AddNoise(usize),
    /// A layer's weight, read without its layer.
    TimesWeight(usize, usize),
}

#[derive(Clone, Debug)]
struct RandomNet {
    ops: Vec<Op>,
}

#[derive(Module, Debug)]
struct Layers {
    layers: Vec<Linear>,
    norms: Vec<LayerNorm>,
}

impl RandomNet {
    /// Returns a network of `count` operations; without noise it is the same function in every run.
    fn new(seed: u64, count: usize, with_noise: bool) -> Self {
        let numbers = noise(count * 3, seed);
        let pick = |index: usize, below: usize| {
            (((numbers[index] + 1.0) / 2.0 * below as f32) as usize).min(below - 1)
        };
        let ops = (0..count).map(|index| {
            // Mostly the last value, so that the network is deep.
            let far = pick(3 * index + 1, index + 1);
            let near = index - pick(3 * index + 1, (index + 1).min(3));
            match pick(3 * index, if with_noise { 12 } else { 11 }) {
                0..=3 => Op::Linear(near, pick(3 * index + 2, LAYERS)),
                4 => Op::Norm(near, pick(3 * index + 2, LAYERS)),
                5 => Op::Gelu(near),
                6 => Op::Softmax(near),
                7 => Op::Add(near, far),
                8 => Op::Multiply(near, far),
                9 => Op::AddDetached(near, far),
                10 => Op::TimesWeight(near, pick(3 * index + 2, LAYERS)),
                _ => Op::AddNoise(near),
            }
        });
        let mut ops: Vec<Op> = ops.collect();
        // A trainable parameter on every path to the loss.
        ops.push(Op::Linear(count, 0));
        Self { ops }
    }
}

impl Case for RandomNet {
    type Model = Layers;
    type Batch = (Tensor<2>, Tensor<2>);

    fn init(&self, device: &Device) -> Layers {
        Layers {
            layers: (0..LAYERS)
                .map(|_| LinearConfig::new(WIDTH, WIDTH).init(device))
                .collect(),
            norms: (0..LAYERS)
                .map(|_| LayerNormConfig::new(WIDTH).init(device))
                .collect(),
        }
    }

    fn forward(&self, model: &Layers, (x, y): Self::Batch) -> Outputs {
        let mut values = vec![x];
        for op in &self.ops {
            let value = |index: &usize| values[*index].clone();
            let next = match op {
                Op::Linear(a, layer) => model.layers[*layer].forward(value(a)),
                Op::Norm(a, norm) => model.norms[*norm].forward(value(a)),
                Op::Gelu(a) => gelu(value(a)),
                Op::Softmax(a) => softmax(value(a), 1),
                Op::Add(a, b) => value(a) + value(b),
                Op::Multiply(a, b) => value(a) * value(b),
                Op::AddDetached(a, b) => value(a) + value(b).detach(),
                Op::AddNoise(a) => {
                    let a = value(a);
                    a.clone() + a.random_like(Distribution::Normal(0.0, 0.1))
                }
                Op::TimesWeight(a, layer) => value(a).matmul(model.layers[*layer].weight.val()),
            };
            values.push(next);
        }
        let last = values.pop().expect("there are values");
        Outputs::loss((last - y).powf_scalar(2.0).mean())
    }

    fn batch(&self, number: u64, device: &Device) -> Self::Batch {
        let shape = [SAMPLES, WIDTH];
        (
            floats(shape, number, device),
            floats(shape, number + 1000, device),
        )
    }
}

/// Returns the number of stage counts that were compared.
fn check(seed: u64, with_noise: bool) -> usize {
    let case = RandomNet::new(seed, 6 + (seed % 11) as usize, with_noise);
    let model = deferred(&case);
    let count = [1, 2, 3, SAMPLES][(seed / 3 % 4) as usize];
    let parts = micro_batches(&case, count);
    let expected = match with_noise {
        true => uncut::train(&case, &model, &parts),
        false => plain::train(&case, &model, &parts),
    };
    let trace = trace(&case, &model, count);
    for stages in 1..=5 {
        let plan = match trace.plan(&Machine::local(stages).unwrap()) {
            // Fewer modules than stages are read on the path to the loss.
            Err(PlanError::Planner(PlannerError::TooManyStages { .. })) => return stages - 1,
            plan => plan.unwrap(),
        };
        let schedule = match (seed + stages as u64).is_multiple_of(2) {
            true => ScheduleKind::GPipe,
            false => ScheduleKind::OneFOneB,
        };
        let found = run(&case, &model, &trace, &plan, schedule);
        let what = format!("seed {seed}, {stages} stages, {schedule}, {count} parts, {case:?}");
        assert_same(&found, &expected, &what);
    }
    5
}

#[test]
fn random_networks_equal_plain_burn() {
    let runs: usize = (0..60).map(|seed| check(seed, false)).sum();
    assert!(runs > 150, "{runs} runs");
}

#[test]
fn random_networks_with_noise_equal_their_uncut_graph() {
    let runs: usize = (100..140).map(|seed| check(seed, true)).sum();
    assert!(runs > 100, "{runs} runs");
}
