//! Values for batches, and plain Burn as the reference, for the test programs of this package.

#![allow(
    missing_docs,
    missing_debug_implementations,
    reason = "only tests use it"
)]

use std::collections::BTreeMap;

use burn::module::Module;
use burn::optim::{ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};
use tinderbox_deferred::{Deferred, random::Seed};
pub use tinderbox_models::plain::parameters;
use tinderbox_models::plain::{bytes, gradients, number, weighted};
pub use tinderbox_models::split::{Split, split};
pub use tinderbox_models::values::{floats, noise, tokens};
use tinderbox_pipeline::{Batch, Machine, Outputs, Pipeline, ScheduleKind, Trace, Traceable};

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

    pub fn trace(&self, model: &Deferred<M>, micro_batches: usize) -> Trace<B> {
        let forward = self.forward;
        let batch = (self.batch)(0, &Device::flex());
        let outputs = move |model: &M, batch| {
            let (loss, y) = forward(model, batch);
            match y {
                Some(y) => Outputs::loss(loss).with("y", y),
                None => Outputs::loss(loss),
            }
        };
        model.trace(&batch, micro_batches, outputs).unwrap()
    }

    pub fn start(&self, setting: Setting, optimizer: impl Optimizer) -> Pipeline<M, B> {
        let model = self.model();
        let trace = self.trace(&model, setting.micro_batches);
        let plan = trace
            .plan(&Machine::local(setting.stages).unwrap())
            .unwrap();
        Pipeline::builder(&model, &trace, &plan)
            .custom_optimizer(optimizer)
            .schedule(setting.schedule)
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
    let initializer = model.initializer(Seed::new(SEED));
    let module = model.materialize(&Device::flex().autodiff(), &initializer);
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
        let (mut losses, mut outputs) = (Vec::new(), Vec::new());
        let summed = gradients(&module, weighted(parts, SAMPLES), |batch| {
            let (loss, y) = (case.forward)(&module, batch);
            losses.push(number(&loss));
            outputs.extend(y.map(|y| bytes(y.into())));
            loss
        });
        run.losses.push(losses);
        run.outputs.push(outputs);
        module = optimizer.step(LR, module, summed);
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
    step: u64,
    run: &mut Run,
) {
    let batch = (case.batch)(step, &Device::flex());
    let parts = split(&batch, micro_batches).into_iter();
    let computed: Vec<_> = parts.map(|(b, _)| (case.forward)(module, b)).collect();
    let losses = computed.iter().map(|(loss, _)| loss);
    run.losses.push(losses.map(number).collect());
    let outputs = computed.into_iter().filter_map(|(_, y)| y);
    run.outputs.push(outputs.map(|y| bytes(y.into())).collect());
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

/// The mean of the squares of a difference.
pub fn squared(x: Tensor<2>, y: Tensor<2>) -> Tensor<1> {
    (x - y).powf_scalar(2.0).mean()
}
