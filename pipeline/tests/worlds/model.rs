//! A model with everything that crosses ranks, and what a run of it computes.

use std::time::Duration;

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Tensor};
use tinderbox_deferred::Deferred;
use tinderbox_engines::{Delays, Net as Connections, Threads};
use tinderbox_pipeline::{
    Clipping, Evaluation, Machine, Outputs, Pipeline, PipelineBuilder, Plan, Planner, ScheduleKind,
    Trace, Traceable,
};
use tinderbox_pipeline_tests::{floats, parameters, squared};
use tinderbox_world::{World, WorldOptions};

pub(crate) const WIDTH: usize = 10;
pub(crate) const SAMPLES: usize = 12;
pub(crate) const MICRO_BATCHES: usize = 4;

/// The first layer is read again at the end: its gradient comes from two stages, and its value goes to both.
#[derive(Module, Debug)]
pub(crate) struct Net {
    pub(crate) layers: Vec<Linear>,
    dropout: Dropout,
}

pub(crate) type Batch = (Tensor<2>, Tensor<2>);

impl Net {
    pub(crate) fn init(device: &Device) -> Self {
        Self {
            layers: (0..8)
                .map(|_| LinearConfig::new(WIDTH, WIDTH).init(device))
                .collect(),
            dropout: DropoutConfig::new(0.2).init(),
        }
    }

    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = self
            .layers
            .iter()
            .fold(x, |x, layer| self.dropout.forward(gelu(layer.forward(x))));
        x.matmul(self.layers[0].weight.val())
    }
}

pub(crate) fn batch(number: u64) -> Batch {
    let device = Device::flex();
    let shape = [SAMPLES, WIDTH];
    (
        floats(shape, number, &device),
        floats(shape, number + 1000, &device),
    )
}

pub(crate) fn traced() -> (Deferred<Net>, Trace<Batch>) {
    let model = Deferred::new(Net::init).unwrap();
    let trace = model.trace(&batch(0), MICRO_BATCHES, outputs);
    (model, trace.unwrap())
}

pub(crate) fn outputs(net: &Net, (x, y): Batch) -> Outputs {
    let output = net.forward(x);
    Outputs::loss(squared(output.clone(), y)).with("y", output)
}

/// A pipeline of `ranks` ranks that clips by the norm of all gradients.
pub(crate) fn builder(ranks: usize, kind: ScheduleKind) -> PipelineBuilder<Net, Batch> {
    builder_of(1, ranks, kind)
}

/// The same of several replicas.
pub(crate) fn builder_of(
    replicas: usize,
    ranks: usize,
    kind: ScheduleKind,
) -> PipelineBuilder<Net, Batch> {
    let (model, trace) = traced();
    builder_for((&model, &trace), (replicas, ranks), kind)
}

/// The same for a step of another trace.
pub(crate) fn builder_for(
    (model, trace): (&Deferred<Net>, &Trace<Batch>),
    (replicas, ranks): (usize, usize),
    kind: ScheduleKind,
) -> PipelineBuilder<Net, Batch> {
    let plan = plan_for(trace, (replicas, ranks), kind);
    builder_with((model, trace, &plan), kind)
}

/// A plan with as many stages on each rank as the schedule has.
pub(crate) fn plan_for(
    trace: &Trace<Batch>,
    (replicas, ranks): (usize, usize),
    kind: ScheduleKind,
) -> Plan {
    let chunks = match kind {
        ScheduleKind::Zbv | ScheduleKind::DualPipeV | ScheduleKind::Interleaved1F1B => 2,
        _ => 1,
    };
    let machine = Machine::local(replicas * ranks).unwrap();
    let machine = machine.with_chunks(chunks, kind.placement()).unwrap();
    let planner = Planner::new(trace, &machine).replicas(replicas);
    planner.plan().unwrap()
}

/// A pipeline of a plan that clips by the norm of all gradients.
pub(crate) fn builder_with(
    (model, trace, plan): (&Deferred<Net>, &Trace<Batch>, &Plan),
    kind: ScheduleKind,
) -> PipelineBuilder<Net, Batch> {
    Pipeline::builder(model, trace, plan)
        .optimizer(AdamWConfig::new())
        .clip(Clipping::GlobalNorm(0.05))
        .average(0.9)
        .schedule(kind)
        .seed(7)
        .threads_per_rank(1)
        .timeout(Duration::from_secs(20))
}

/// Everything that steps and evaluations return, and the values of all parameters, bit by bit.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Seen {
    numbers: Vec<u64>,
    pub(crate) outputs: Vec<Vec<u8>>,
    values: Vec<(String, Vec<u8>)>,
}

impl Seen {
    pub(crate) fn note(&mut self, output: &Evaluation) {
        let losses = output.micro_batch_losses.iter().chain(&output.loss);
        let numbers = losses
            .chain(&output.gradient_norm)
            .map(|number| number.to_bits());
        self.numbers.extend(numbers);
        for value in output.output("y").unwrap_or_default() {
            self.outputs
                .push(value.to_data().unwrap().as_bytes().to_vec());
        }
    }
}

/// What users do: steps, an uneven batch, evaluations, parameters read and set, averages, the whole model.
pub(crate) fn run(pipeline: &mut Pipeline<Net, Batch>, steps: u64) -> Seen {
    let mut seen = Seen::default();
    for step in 0..steps {
        seen.note(&pipeline.step(1e-2, batch(step)).unwrap().into());
        if step == 1 {
            let (x, y) = batch(50);
            let uneven = (x.narrow(0, 0, 7), y.narrow(0, 0, 7));
            seen.note(&pipeline.step(1e-2, uneven.clone()).unwrap().into());
            seen.note(&pipeline.evaluate(uneven).unwrap());
        }
    }
    let weight = pipeline.parameter("layers.5.weight").unwrap();
    seen.outputs
        .push(weight.to_data().unwrap().as_bytes().to_vec());
    pipeline
        .set_parameters([("layers.2.weight", weight)])
        .unwrap();
    let averaged = pipeline.with_averages(|averaged| averaged.evaluate(batch(60)));
    seen.note(&averaged.unwrap().unwrap());
    seen.note(
        &pipeline
            .step_accumulated(1e-2, [batch(61), batch(62)])
            .unwrap()
            .into(),
    );
    let module = pipeline.gather(&Device::flex()).unwrap();
    seen.values = parameters(&module).into_iter().collect();
    let first = pipeline.gather_on_first(&Device::flex()).unwrap();
    assert!(first.is_none_or(|first| parameters(&first).into_iter().eq(seen.values.clone())));
    seen
}

pub(crate) fn options() -> WorldOptions {
    let mut options = WorldOptions::default();
    options.heartbeat = Duration::from_millis(50);
    options.call_timeout = Duration::from_secs(20);
    options
}

/// Runs a program as every process of a world of threads.
pub(crate) fn on_world<R: Send>(
    size: usize,
    delays: Delays,
    program: impl Fn(World, &Connections) -> R + Sync,
) -> Vec<R> {
    Threads::run(size, delays, &options(), program).unwrap()
}
