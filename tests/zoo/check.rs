//! Trains a model in plain Burn and in pipelines, and compares bit for bit.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::Device;
use tinderbox::random::Seed;
use tinderbox::{
    Batch, Checkpoints, Deferred, DynTensor, Machine, Outputs, Pipeline, Plan, Trace, Traceable,
    parameter_values,
};

use crate::models::{Entry, Visit};
use crate::split::{Split, split};

const STEPS: u64 = 5;
const SAVED_AT: u64 = 2;
const RATE: f64 = 1e-2;
pub const SEED: u64 = 42;

/// Compares a model with plain Burn in every setting: 1 to 4 stages, 1 and 4 micro-batches, each as one run and as a
/// run that was saved and resumed with another number of stages.
#[derive(Default)]
pub struct Check {
    /// The settings that were compared.
    pub settings: usize,
    /// The settings that differ, with what differs.
    pub differences: Vec<String>,
}

impl Visit for Check {
    fn visit<M: Module + Sync + 'static, B: Batch + Split>(&mut self, entry: Entry<M, B>) {
        let model = Deferred::new(entry.init).unwrap();
        let trace = traced(entry, &model);
        for micro_batches in [1, 4] {
            let expected = plain(entry, &model, micro_batches);
            for stages in 1..=4 {
                let dir = tempfile::tempdir().unwrap();
                let saves = Checkpoints::open(dir.path()).unwrap().every(SAVED_AT);
                let start = |stages| start(&model, &trace, stages, micro_batches);
                let mut first = start(stages);
                let mut found = Run::default();
                train(&mut first, entry, SAVED_AT, &mut found);
                saves.after_step(&mut first, 0).unwrap().unwrap();
                let mut resumed = Run {
                    losses: found.losses.clone(),
                    ..Run::default()
                };
                train_and_finish(first, entry, &mut found);
                let others = stages % 4 + 1;
                let mut second = start(others);
                saves.resume(&mut second).unwrap().unwrap();
                train_and_finish(second, entry, &mut resumed);
                for (run, what) in [(found, "in one run"), (resumed, "resumed")] {
                    self.settings += 1;
                    if let Some(difference) = run.difference(&expected) {
                        self.differences.push(format!(
                            "{stages} stages (then {others}), {micro_batches} micro-batches, {what}: {difference}"
                        ));
                    }
                }
            }
        }
    }
}

/// The results of a training and of an evaluation after it.
#[derive(Default)]
pub struct Run {
    /// The loss of each micro-batch of each step, and of the evaluation.
    losses: Vec<Vec<f64>>,
    /// The bytes of all parameters and states.
    parameters: BTreeMap<String, Vec<u8>>,
}

impl Run {
    pub fn difference(&self, expected: &Self) -> Option<String> {
        let steps = self.losses.iter().zip(&expected.losses).enumerate();
        let mut differing = steps.filter(|(_, (found, expected))| found != expected);
        if let Some((step, (found, expected))) = differing.next() {
            return Some(format!("losses {found:?} of step {step}, not {expected:?}"));
        }
        if self.losses.len() != expected.losses.len() {
            return Some(format!("{} steps", self.losses.len()));
        }
        let paths = |run: &Self| run.parameters.keys().cloned().collect::<Vec<_>>();
        if paths(self) != paths(expected) {
            return Some("other parameters".into());
        }
        let mut parameters = expected.parameters.iter();
        let differing = parameters.find(|(path, value)| self.parameters[*path] != **value);
        differing.map(|(path, _)| format!("parameter `{path}`"))
    }
}

fn values<M: Module>(module: &M) -> BTreeMap<String, Vec<u8>> {
    let bytes = |value: DynTensor| value.to_data().unwrap().as_bytes().to_vec();
    let values = parameter_values(module).into_iter();
    values
        .map(|(path, value)| (path.to_string(), bytes(value)))
        .collect()
}

/// Plain Burn, which accumulates the gradients of the micro-batches.
pub fn plain<M: Module + Sync + 'static, B: Batch + Split>(
    entry: Entry<M, B>,
    model: &Deferred<M>,
    micro_batches: usize,
) -> Run {
    let device = Device::flex().autodiff();
    let replay = model.replay(Seed::new(SEED));
    let mut module = model.materialize(&device, &replay).unwrap();
    let mut optimizer = AdamWConfig::new().init();
    let mut run = Run::default();
    let loss_of = |outputs: Outputs| outputs.into_loss().unwrap();
    for step in 0..STEPS {
        let parts = split(&(entry.batch)(step, &device), micro_batches);
        let counts = parts.iter().map(|(batch, samples)| match entry.count {
            Some(count) => count(batch),
            None => *samples as f64,
        });
        let counts: Vec<f64> = counts.collect();
        let total: f64 = counts.iter().sum();
        let mut accumulator = GradientsAccumulator::new();
        let mut losses = Vec::new();
        for ((batch, _), count) in parts.into_iter().zip(counts) {
            let loss = loss_of((entry.forward)(&module, batch));
            losses.push(f64::from(loss.clone().into_scalar::<f32>()));
            let weighted = loss.mul_scalar((count / total) as f32);
            let gradients = GradientsParams::from_grads(weighted.backward(), &module);
            accumulator.accumulate(&module, gradients);
        }
        run.losses.push(losses);
        module = optimizer.step(RATE, module, accumulator.grads());
    }
    let trained = module.valid();
    run.parameters = values(&trained);
    let batch = (entry.batch)(STEPS, &Device::flex());
    let parts = split(&batch, micro_batches).into_iter();
    let losses = parts.map(|(batch, _)| loss_of((entry.forward)(&trained, batch)));
    let losses = losses.map(|loss| f64::from(loss.into_scalar::<f32>()));
    run.losses.push(losses.collect());
    run
}

fn start<M: Module + Sync + 'static, B: Batch>(
    model: &Deferred<M>,
    trace: &Trace<B>,
    stages: usize,
    micro_batches: usize,
) -> Pipeline<M, B> {
    let plan = Plan::auto(trace, &Machine::local(stages).unwrap()).unwrap();
    Pipeline::new(model, trace, &plan)
        .optimizer(AdamWConfig::new())
        .micro_batches(micro_batches)
        .seed(SEED)
        .start()
        .unwrap()
}

fn train<M: Module + Sync + 'static, B: Batch>(
    pipeline: &mut Pipeline<M, B>,
    entry: Entry<M, B>,
    steps: u64,
    run: &mut Run,
) {
    while pipeline.steps() < steps {
        let batch = (entry.batch)(pipeline.steps(), &Device::flex());
        let output = pipeline.step(RATE, batch).unwrap();
        run.losses.push(output.micro_batch_losses);
    }
}

/// Trains to the last step, and evaluates.
pub fn train_and_finish<M: Module + Sync + 'static, B: Batch>(
    mut pipeline: Pipeline<M, B>,
    entry: Entry<M, B>,
    run: &mut Run,
) {
    train(&mut pipeline, entry, STEPS, run);
    run.parameters = values(&pipeline.gather(&Device::flex()).unwrap());
    let batch = (entry.batch)(STEPS, &Device::flex());
    let output = pipeline.evaluate(batch).unwrap();
    run.losses.push(output.micro_batch_losses);
}

/// The forward of a model, traced for its batches.
pub fn traced<M: Module + Sync + 'static, B: Batch>(
    entry: Entry<M, B>,
    model: &Deferred<M>,
) -> Trace<B> {
    let forward = entry.forward;
    let example = (entry.batch)(0, &Device::flex());
    let traced = model.trace(&example, move |model: &M, batch| forward(model, batch));
    traced.unwrap()
}
