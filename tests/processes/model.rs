//! A model with everything that crosses ranks.

use std::time::Duration;

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use tinderbox::error::PipelineError;
use tinderbox::{
    Clipping, Deferred, GradientSum, Machine, Outputs, Pipeline, Planner, Recovery, ScheduleKind,
    Traceable, World,
};

use crate::program::Program;

const WIDTH: usize = 8;
const SAMPLES: usize = 4;

/// The weight of the first layer is read again at the end: its gradient comes from two stages, and its value goes to both.
#[derive(Module, Debug)]
pub struct Net {
    layers: Vec<Linear>,
    dropout: Dropout,
}

pub type Batch = (Tensor<2>, Tensor<2>);

pub type Training = Pipeline<Net, Batch>;

impl Net {
    fn init(device: &Device) -> Self {
        let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(device);
        Self {
            layers: (0..6).map(layer).collect(),
            dropout: DropoutConfig::new(0.1).init(),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let layer = |x, layer: &Linear| self.dropout.forward(layer.forward(x)).tanh();
        let x = self.layers.iter().fold(x, layer);
        x.matmul(self.layers[0].weight.val())
    }
}

pub fn batch(step: u64) -> Batch {
    let device = Device::flex();
    let values = |seed: u64| {
        let numbers = (0..SAMPLES * WIDTH).map(|at| (at as f32 + seed as f32 * 0.37).sin());
        let numbers: Vec<f32> = numbers.collect();
        Tensor::<1>::from_floats(&numbers[..], &device).reshape([SAMPLES, WIDTH])
    };
    (values(step), values(step + 1_000_000))
}

/// A pipeline whose steps have every kind of action: backwards in two parts, a value of two stages, a norm of all, and with
/// replicas what these exchange. `ranks` is the number of ranks of all replicas.
pub fn start(program: &Program, ranks: usize, world: &World) -> Result<Training, PipelineError> {
    let replicas = program.replicas.max(1);
    let micro_batches = match program.micro_batches {
        0 => 2,
        micro_batches => micro_batches,
    };
    let model = Deferred::new(Net::init).expect("the model is recorded");
    let trace = model.trace(&batch(0), micro_batches, |net: &Net, (x, y): Batch| {
        Outputs::loss((net.forward(x) - y).powf_scalar(2.0).mean())
    });
    let trace = trace.expect("the forward is recorded");
    let machine = Machine::local(ranks).expect("a machine has ranks");
    let planner = Planner::new(&trace, &machine).replicas(replicas);
    let plan = planner.plan().expect("six layers are cut into stages");
    let mut builder = Pipeline::builder(&model, &trace, &plan);
    if program.recovers {
        builder = builder.recovery(Recovery::default());
    }
    builder
        .optimizer(AdamWConfig::new())
        .clip(Clipping::GlobalNorm(0.5))
        .gradient_sum(GradientSum::Tree(micro_batches))
        .schedule(ScheduleKind::ZbH1)
        .seed(7)
        .threads_per_rank(1)
        .timeout(Duration::from_secs(20))
        .world(world)
        .start()
}
