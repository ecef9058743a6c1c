//! Values for batches, and plain Burn as the reference.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Int, Tensor, TensorData};
use tinderbox_deferred::{Deferred, parameter_values, random::Seed};
use tinderbox_fake::DynTensor;
use tinderbox_pipeline::{Batch, Machine, Outputs, Pipeline, Plan, ScheduleKind, Trace, Traceable};

pub use split::{Split, split};

mod split;

/// The seed of all tests.
pub const SEED: u64 = 7;
/// The learning rate of all tests.
pub const LR: f64 = 1e-2;
/// The number of samples of every batch.
pub const SAMPLES: usize = 8;

/// The loss, and a named output `y` if there is one.
pub type Computed = (Tensor<1>, Option<Tensor<2>>);

/// A model with batches to train it on.
pub struct Case<M, B> {
    pub init: fn(&Device) -> M,
    pub forward: fn(&M, B) -> Computed,
    pub batch: fn(u64, &Device) -> B,
}

impl<M, B> Clone for Case<M, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M, B> Copy for Case<M, B> {}

impl<M: Module + Sync + 'static, B: Batch> Case<M, B> {
    pub fn model(&self) -> Deferred<M> {
        Deferred::new(self.init).unwrap()
    }

    pub fn trace(&self, model: &Deferred<M>) -> Trace<B> {
        let forward = self.forward;
        let example = (self.batch)(0, &Device::flex());
        let outputs = move |model: &M, batch| {
            let (loss, y) = forward(model, batch);
            match y {
                Some(y) => Outputs::loss(loss).with("y", y),
                None => Outputs::loss(loss),
            }
        };
        model.trace(&example, outputs).unwrap()
    }

    pub fn start(&self, setting: Setting, optimizer: impl Optimizer) -> Pipeline<M, B> {
        let model = self.model();
        let trace = self.trace(&model);
        let plan = Plan::auto(&trace, &Machine::local(setting.stages).unwrap()).unwrap();
        Pipeline::new(&model, &trace, &plan)
            .custom_optimizer(optimizer)
            .schedule(setting.schedule)
            .micro_batches(setting.micro_batches)
            .seed(SEED)
            .start()
            .unwrap()
    }
}

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub stages: usize,
    pub schedule: ScheduleKind,
    pub micro_batches: usize,
}

/// Stages under both schedules, for a number of micro-batches.
pub fn settings(stages: impl IntoIterator<Item = usize>, micro_batches: usize) -> Vec<Setting> {
    let schedules = [
        ScheduleKind::GPipe,
        ScheduleKind::OneFOneB,
        ScheduleKind::ZbH1,
    ];
    let of = |stages| {
        schedules.map(|schedule| Setting {
            stages,
            schedule,
            micro_batches,
        })
    };
    stages.into_iter().flat_map(of).collect()
}

/// The results of a run: a loss and an output per step and micro-batch, and all parameters at the end.
#[derive(Debug, Default, PartialEq)]
pub struct Run {
    pub losses: Vec<Vec<f64>>,
    pub outputs: Vec<Vec<Vec<u8>>>,
    pub parameters: BTreeMap<String, Vec<u8>>,
}

impl Run {
    pub fn assert_same(&self, expected: &Self, what: &str) {
        assert_eq!(self.losses, expected.losses, "losses, {what}");
        assert!(self.outputs == expected.outputs, "outputs, {what}");
        let paths = |run: &Self| run.parameters.keys().cloned().collect::<Vec<_>>();
        assert_eq!(paths(self), paths(expected), "{what}");
        for (path, expected) in &expected.parameters {
            assert!(self.parameters[path] == *expected, "{path}, {what}");
        }
    }
}

/// Trains with Burn's autodiff, micro-batch by micro-batch, and evaluates at the end.
pub fn plain<M: Module + Sync + 'static, B: Batch + Split>(
    case: Case<M, B>,
    optimizer: ModuleOptimizer,
    micro_batches: usize,
    steps: u64,
) -> Run {
    let model = case.model();
    let replay = model.replay(Seed::new(SEED));
    let module = model.materialize(&Device::flex().autodiff(), &replay);
    train(case, module.unwrap(), optimizer, micro_batches, steps)
}

/// As [`plain`], for a model whose constructor draws nothing: it is called as in plain Burn.
pub fn data_run<M: Module + Sync + 'static, B: Batch + Split>(
    case: Case<M, B>,
    optimizer: ModuleOptimizer,
    micro_batches: usize,
    steps: u64,
) -> Run {
    let module = (case.init)(&Device::flex().autodiff());
    train(case, module, optimizer, micro_batches, steps)
}

fn train<M: Module + Sync + 'static, B: Batch + Split>(
    case: Case<M, B>,
    mut module: M,
    mut optimizer: ModuleOptimizer,
    micro_batches: usize,
    steps: u64,
) -> Run {
    let device = Device::flex().autodiff();
    let mut run = Run::default();
    for step in 0..steps {
        let parts = split(&(case.batch)(step, &device), micro_batches);
        let mut accumulator = GradientsAccumulator::new();
        let (mut losses, mut outputs) = (Vec::new(), Vec::new());
        for (batch, samples) in parts {
            let (loss, y) = (case.forward)(&module, batch);
            losses.push(f64::from(loss.clone().into_scalar::<f32>()));
            outputs.extend(y.map(bytes));
            let weighted = loss.mul_scalar(samples as f32 / SAMPLES as f32);
            let gradients = GradientsParams::from_grads(weighted.backward(), &module);
            accumulator.accumulate(&module, gradients);
        }
        run.losses.push(losses);
        run.outputs.push(outputs);
        module = optimizer.step(LR, module, accumulator.grads());
    }
    // Before, running states show the value before the last update.
    let trained = module.valid();
    run.parameters = parameters(&trained);
    evaluate(&trained, case, micro_batches, steps, &mut run);
    run
}

fn evaluate<M: Module, B: Batch + Split>(
    module: &M,
    case: Case<M, B>,
    micro_batches: usize,
    number: u64,
    run: &mut Run,
) {
    let batch = (case.batch)(number, &Device::flex());
    let parts = split(&batch, micro_batches).into_iter();
    let computed: Vec<_> = parts.map(|(b, _)| (case.forward)(module, b)).collect();
    let losses = computed.iter().map(|(loss, _)| loss.clone());
    let scalars = losses.map(|loss| f64::from(loss.into_scalar::<f32>()));
    run.losses.push(scalars.collect());
    let outputs = computed.into_iter().filter_map(|(_, y)| y);
    run.outputs.push(outputs.map(bytes).collect());
}

/// Trains with a pipeline and evaluates at the end.
pub fn pipelined<M: Module + Sync + 'static, B: Batch>(
    case: Case<M, B>,
    optimizer: impl Optimizer,
    setting: Setting,
    steps: u64,
) -> Run {
    let mut pipeline = case.start(setting, optimizer);
    let mut run = Run::default();
    continue_run(&mut pipeline, case, 0..steps, &mut run);
    run.parameters = parameters(&pipeline.gather(&Device::flex()).unwrap());
    let batch = (case.batch)(steps, &Device::flex());
    note(pipeline.evaluate(batch).unwrap(), &mut run);
    run
}

/// Trains a pipeline for some steps.
pub fn continue_run<M: Module + Sync + 'static, B: Batch>(
    pipeline: &mut Pipeline<M, B>,
    case: Case<M, B>,
    steps: std::ops::Range<u64>,
    run: &mut Run,
) {
    for step in steps {
        let batch = (case.batch)(step, &Device::flex());
        note(pipeline.step(LR, batch).unwrap().into(), run);
    }
}

/// Adds losses and outputs of a step or an evaluation.
pub fn note(output: tinderbox_pipeline::Evaluation, run: &mut Run) {
    run.losses.push(output.micro_batch_losses.clone());
    let values = output.output("y").unwrap_or_default();
    let data = values.iter().map(|y| y.to_data().unwrap());
    run.outputs
        .push(data.map(|data| data.as_bytes().to_vec()).collect());
}

/// The bits of every parameter of a module, by path.
pub fn parameters<M: Module>(module: &M) -> BTreeMap<String, Vec<u8>> {
    let values = parameter_values(module).into_iter();
    values
        .map(|(path, value)| (path.to_string(), data_of(value)))
        .collect()
}

fn data_of(value: DynTensor) -> Vec<u8> {
    let data = value.without_autodiff().to_data().unwrap();
    data.as_bytes().to_vec()
}

fn bytes(tensor: Tensor<2>) -> Vec<u8> {
    data_of(tensor.into())
}

/// An error with all of its sources, one per line.
pub fn full_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!("\n{cause}"));
        source = cause.source();
    }
    text
}

/// Pseudorandom numbers between -1 and 1, the same on every machine.
pub fn noise(count: usize, number: u64) -> Vec<f32> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((state >> 40) as f32 / (1u64 << 24) as f32) * 2.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A float tensor of [`noise`].
pub fn floats<const D: usize>(shape: [usize; D], number: u64, device: &Device) -> Tensor<D> {
    let values = noise(shape.iter().product(), number);
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Tokens from 0 on, all less than `below`.
pub fn tokens(shape: [usize; 2], below: usize, number: u64, device: &Device) -> Tensor<2, Int> {
    let values = noise(shape.iter().product(), number).into_iter();
    let token = |x: f32| (((x + 1.0) / 2.0 * below as f32) as i32).min(below as i32 - 1);
    let values: Vec<i32> = values.map(token).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// The mean of the squares of a difference.
pub fn squared(x: Tensor<2>, y: Tensor<2>) -> Tensor<1> {
    (x - y).powf_scalar(2.0).mean()
}
