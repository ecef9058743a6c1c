//! Trains a model in plain Burn and in pipelines, and compares bit for bit.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use tinderbox::deferred::random::Seed;
use tinderbox::{Batch, Checkpoints, Deferred, Machine, Outputs, Pipeline, Trace, Traceable};

use super::entry::{Entry, Visit};
use crate::plain::{gradients, number, parameters};
use crate::split::{Split, split};

const STEPS: u64 = 5;
const SAVED_AT: u64 = 2;
const RATE: f64 = 1e-2;
/// The seed of all models.
pub const SEED: u64 = 42;

/// Compares a model with plain Burn in every setting: 1 to 4 stages, 1 and 4 micro-batches, each as one run and as a
/// run that was saved and resumed with another number of stages.
#[derive(Default)]
pub struct Check {
    /// The settings that were compared.
    pub settings: usize,
    /// The settings that differ, each with its first difference.
    pub differences: Vec<String>,
}

impl Visit for Check {
    fn visit<M: Module + Sync + 'static, B: Batch + Split>(&mut self, entry: Entry<M, B>) {
        let model = Deferred::new(entry.init).expect("it is recorded");
        for micro_batches in [1, 4] {
            let trace = traced(entry, &model, micro_batches);
            let expected = plain(entry, &model, micro_batches);
            for stages in 1..=4 {
                let dir = tempfile::tempdir().expect("a directory");
                let saves = Checkpoints::open(dir.path()).expect("it is empty");
                let saves = saves.every(SAVED_AT);
                let start = |stages| start(&model, &trace, stages);
                let mut first = start(stages);
                let mut found = Run::default();
                train(&mut first, entry, SAVED_AT, &mut found);
                let saved = saves.after_step(&mut first, 0).expect("it is saved");
                saved.expect("a save is due");
                let mut resumed = Run {
                    losses: found.losses.clone(),
                    ..Run::default()
                };
                train_and_finish(first, entry, &mut found);
                let others = stages % 4 + 1;
                let mut second = start(others);
                let resumed_at = saves.resume(&mut second).expect("it is resumed");
                resumed_at.expect("there is a checkpoint");
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

/// Trains in plain Burn, which accumulates the gradients of the micro-batches.
pub fn plain<M: Module + Sync + 'static, B: Batch + Split>(
    entry: Entry<M, B>,
    model: &Deferred<M>,
    micro_batches: usize,
) -> Run {
    let device = Device::flex().autodiff();
    let initializer = model.initializer(Seed::new(SEED));
    let materialized = model.materialize(&device, &initializer);
    let mut module = materialized.expect("it is materialized");
    let mut optimizer = AdamWConfig::new().init();
    let mut run = Run::default();
    let loss_of = |outputs: Outputs| outputs.into_loss().expect("it has a loss");
    for step in 0..STEPS {
        let parts = split(&(entry.batch)(step, &device), micro_batches);
        let counts = parts.iter().map(|(batch, samples)| match entry.count {
            Some(count) => count(batch),
            None => *samples as f64,
        });
        let counts: Vec<f64> = counts.collect();
        let total: f64 = counts.iter().sum();
        let parts = parts.into_iter().zip(counts);
        let parts = parts.map(|((batch, _), count)| (batch, (count / total) as f32));
        let mut losses = Vec::new();
        let summed = gradients(&module, parts, |batch| {
            let loss = loss_of((entry.forward)(&module, batch));
            losses.push(number(&loss));
            loss
        });
        run.losses.push(losses);
        module = optimizer.step(RATE, module, summed);
    }
    let trained = module.valid();
    run.parameters = parameters(&trained);
    let batch = (entry.batch)(STEPS, &Device::flex());
    let parts = split(&batch, micro_batches).into_iter();
    let losses = parts.map(|(batch, _)| loss_of((entry.forward)(&trained, batch)));
    run.losses.push(losses.map(|loss| number(&loss)).collect());
    run
}

fn start<M: Module + Sync + 'static, B: Batch>(
    model: &Deferred<M>,
    trace: &Trace<B>,
    stages: usize,
) -> Pipeline<M, B> {
    let machine = Machine::local(stages).expect("there are stages");
    let plan = trace.plan(&machine).expect("it is planned");
    Pipeline::builder(model, trace, &plan)
        .optimizer(AdamWConfig::new())
        .seed(SEED)
        .start()
        .expect("it starts")
}

fn train<M: Module + Sync + 'static, B: Batch>(
    pipeline: &mut Pipeline<M, B>,
    entry: Entry<M, B>,
    steps: u64,
    run: &mut Run,
) {
    while pipeline.steps() < steps {
        let batch = (entry.batch)(pipeline.steps(), &Device::flex());
        let output = pipeline.step(RATE, batch).expect("it steps");
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
    let trained = pipeline.gather(&Device::flex());
    run.parameters = parameters(&trained.expect("it is gathered"));
    let batch = (entry.batch)(STEPS, &Device::flex());
    let output = pipeline.evaluate(batch).expect("it evaluates");
    run.losses.push(output.micro_batch_losses);
}

/// Traces the forward of a model with a number of micro-batches.
pub fn traced<M: Module + Sync + 'static, B: Batch>(
    entry: Entry<M, B>,
    model: &Deferred<M>,
    micro_batches: usize,
) -> Trace<B> {
    let forward = entry.forward;
    let batch = (entry.batch)(0, &Device::flex());
    let forward = move |model: &M, batch| forward(model, batch);
    let traced = model.trace(&batch, micro_batches, forward);
    traced.expect("it is traced")
}
