//! A small model with everything that crosses ranks, and the scenarios in which it is trained.

use std::time::Duration;

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Tensor, TensorData};
use tinderbox_deferred::Deferred;
use tinderbox_pipeline::{
    Clipping, GradientSum, Machine, Outputs, Pipeline, PipelineBuilder, Plan, Planner, Recovery,
    ScheduleKind, Trace, Traceable,
};

pub const STEPS: u64 = 4;
pub const MICRO_BATCHES: usize = 4;
const WIDTH: usize = 4;
const SAMPLES: usize = 8;

/// The first layer is read again at the end: its gradient comes from two stages, and its value goes to both.
#[derive(Module, Debug)]
pub struct Net {
    layers: Vec<Linear>,
    dropout: Dropout,
}

pub type Batch = (Tensor<2>, Tensor<2>);

impl Net {
    fn init(device: &Device) -> Self {
        let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(device);
        Self {
            layers: (0..4).map(layer).collect(),
            dropout: DropoutConfig::new(0.2).init(),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let layers = self.layers.iter();
        let x = layers.fold(x, |x, layer| self.dropout.forward(gelu(layer.forward(x))));
        x.matmul(self.layers[0].weight.val())
    }
}

pub fn batch(number: u64) -> Batch {
    let values = |from: u64| {
        let value = |k: u64| ((from * 31 + k) as f32 * 0.7).sin();
        let values: Vec<f32> = (0..(SAMPLES * WIDTH) as u64).map(value).collect();
        Tensor::from_data(TensorData::new(values, [SAMPLES, WIDTH]), &Device::flex())
    };
    (values(number), values(number + 1000))
}

/// The ranks of a run, and how they train.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub replicas: usize,
    pub ranks: usize,
    /// Processes beyond the ranks.
    pub spares: usize,
    pub kind: ScheduleKind,
    /// After how many steps a snapshot is taken.
    pub every: u64,
}

impl Shape {
    pub const fn size(&self) -> usize {
        self.replicas * self.ranks + self.spares
    }
}

/// Every kind of action, of spares and of plans for fewer ranks.
pub const SHAPES: [Shape; 10] = [
    shape(1, 2, 0, ScheduleKind::OneFOneB, 1),
    shape(1, 2, 1, ScheduleKind::OneFOneB, 1),
    shape(1, 3, 0, ScheduleKind::ZbH1, 1),
    shape(1, 3, 1, ScheduleKind::GPipe, 2),
    shape(1, 2, 0, ScheduleKind::Zbv, 1),
    shape(1, 2, 2, ScheduleKind::DualPipeV, 1),
    shape(2, 1, 0, ScheduleKind::OneFOneB, 1),
    shape(2, 2, 0, ScheduleKind::OneFOneB, 1),
    shape(2, 2, 1, ScheduleKind::ZbH1, 2),
    shape(4, 1, 0, ScheduleKind::GPipe, 1),
];

const fn shape(
    replicas: usize,
    ranks: usize,
    spares: usize,
    kind: ScheduleKind,
    every: u64,
) -> Shape {
    Shape {
        replicas,
        ranks,
        spares,
        kind,
        every,
    }
}

/// The model, its trace, and a plan for each shape.
pub struct Models {
    model: Deferred<Net>,
    trace: Trace<Batch>,
    plans: Vec<Plan>,
}

impl Models {
    pub fn new() -> Self {
        let model = Deferred::new(Net::init).unwrap();
        let trace = model.trace(&batch(0), MICRO_BATCHES, |net: &Net, (x, y): Batch| {
            let difference = net.forward(x) - y;
            Outputs::loss((difference.clone() * difference).mean())
        });
        let trace = trace.unwrap();
        let plans = SHAPES.iter().map(|shape| {
            let chunks = match shape.kind {
                ScheduleKind::Zbv | ScheduleKind::DualPipeV => 2,
                _ => 1,
            };
            let machine = Machine::local(shape.replicas * shape.ranks).unwrap();
            let machine = machine.with_chunks(chunks, shape.kind.placement());
            let planner = Planner::new(&trace, &machine.unwrap());
            planner.replicas(shape.replicas).plan().unwrap()
        });
        let plans = plans.collect();
        Self {
            model,
            trace,
            plans,
        }
    }

    /// A pipeline of a shape that continues after a loss.
    pub fn builder(&self, shape: usize) -> PipelineBuilder<Net, Batch> {
        let (plan, shape) = (&self.plans[shape], &SHAPES[shape]);
        self.of_plan(plan, shape.kind)
            .recovery(Recovery::every(shape.every))
    }

    /// The undisturbed run's, of one rank.
    pub fn undisturbed(&self) -> PipelineBuilder<Net, Batch> {
        let machine = Machine::local(1).unwrap();
        let plan = self.trace.plan(&machine).unwrap();
        self.of_plan(&plan, ScheduleKind::OneFOneB)
    }

    fn of_plan(&self, plan: &Plan, kind: ScheduleKind) -> PipelineBuilder<Net, Batch> {
        Pipeline::builder(&self.model, &self.trace, plan)
            .optimizer(AdamWConfig::new())
            .clip(Clipping::GlobalNorm(0.05))
            .gradient_sum(GradientSum::Tree(MICRO_BATCHES))
            .schedule(kind)
            .seed(7)
            .threads_per_rank(1)
            .timeout(Duration::from_secs(20))
    }
}
