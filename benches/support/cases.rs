//! The trained model, and its training in plain Burn.

use std::sync::Arc;
use std::time::Instant;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Tensor};
use tinderbox::pipeline::{ScheduleChoice, split_batch};
use tinderbox::schedule::{Costs, Dependencies, Placement, Timeline};
use tinderbox::{
    Deferred, GradientSum, Machine, Outputs, Pipeline, Planner, ScheduleKind, Traceable, World,
};
use tinderbox_models::plain::{gradients, weighted};

pub type Batch = (Tensor<2>, Tensor<2>);

const LR: f64 = 1e-3;

/// Layers of linear + GELU.
#[derive(Module, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
}

/// Sizes of a model and its batch.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub layers: usize,
    pub width: usize,
    pub samples: usize,
    pub micro_batches: usize,
}

impl Case {
    /// The case that other pipelines were measured with.
    pub const PEERS: Self = Self {
        layers: 8,
        width: 1024,
        samples: 256,
        micro_batches: 8,
    };

    pub fn model(self) -> Deferred<Mlp> {
        let init = move |device: &Device| Mlp {
            layers: (0..self.layers)
                .map(|_| LinearConfig::new(self.width, self.width).init(device))
                .collect(),
        };
        Deferred::new(init).expect("the model is recorded")
    }

    pub fn batch(self, device: &Device) -> Batch {
        let random = || {
            let shape = [self.samples, self.width];
            Tensor::random(shape, Distribution::Default, device)
        };
        (random(), random())
    }

    /// Starts a pipeline with one thread per rank, and returns it with a batch.
    pub fn pipeline(self, ranks: usize, schedule: impl Into<ScheduleChoice>) -> Run {
        self.pipeline_on(
            Machine::local(ranks).expect("there are ranks"),
            schedule.into(),
        )
    }

    pub fn pipeline_on(self, machine: Machine, schedule: ScheduleChoice) -> Run {
        self.pipeline_in(machine, schedule, &World::alone())
    }

    /// As [`pipeline_on`](Self::pipeline_on), with the ranks as the processes of a world if it has several.
    pub fn pipeline_in(self, machine: Machine, schedule: ScheduleChoice, world: &World) -> Run {
        self.start(machine, schedule, world, 1, GradientSum::Sequential)
    }

    /// Starts replicas on the ranks of a machine, with one thread per rank.
    pub fn start(
        self,
        machine: Machine,
        schedule: ScheduleChoice,
        world: &World,
        replicas: usize,
        sum: GradientSum,
    ) -> Run {
        let device = Device::flex();
        let model = self.model();
        let batch = self.batch(&device);
        let trace = model
            .trace(&batch, self.micro_batches, |net: &Mlp, batch| {
                Outputs::loss(loss(net, batch))
            })
            .expect("it is traced");
        let planner = Planner::new(&trace, &machine).replicas(replicas);
        let plan = planner.plan().expect("there are enough layers");
        let pipeline = Pipeline::builder(&model, &trace, &plan)
            .optimizer(SgdConfig::new())
            .gradient_sum(sum)
            .schedule(schedule)
            .threads_per_rank(1)
            .measure()
            .world(world)
            .start()
            .expect("it starts");
        Run { pipeline, batch }
    }
}

/// Returns the machine that a kind of schedule requires.
pub fn machine(kind: ScheduleKind, ranks: usize) -> Machine {
    let chunks = match kind.placement() {
        Placement::V => 2,
        Placement::Loop => 1,
    };
    Machine::local(ranks)
        .and_then(|machine| machine.with_chunks(chunks, kind.placement()))
        .expect("there are ranks and chunks")
}

pub fn loss(net: &Mlp, (x, y): Batch) -> Tensor<1> {
    let x = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
    (x - y).powi_scalar(2).mean()
}

/// A pipeline with its batch.
pub struct Run {
    pipeline: Pipeline<Mlp, Batch>,
    batch: Batch,
}

impl Run {
    /// Runs a step and returns its seconds.
    pub fn step(&mut self) -> f64 {
        self.measured().0
    }

    /// Runs a step and returns its seconds and the times of its actions.
    pub fn measured(&mut self) -> (f64, Timeline) {
        let started = Instant::now();
        let output = self
            .pipeline
            .step(LR, self.batch.clone())
            .expect("it trains");
        let seconds = started.elapsed().as_secs_f64();
        (seconds, output.timeline.expect("it is measured"))
    }

    /// Returns the dependencies and costs of a step.
    pub fn costs(&mut self) -> (Dependencies, Costs) {
        self.pipeline.costs(&self.batch).expect("it is traced")
    }
}

/// Plain Burn on one device, in a thread pool.
pub struct Plain {
    pool: Arc<rayon::ThreadPool>,
    module: Option<Mlp>,
    optimizer: ModuleOptimizer,
    parts: Vec<(Batch, usize)>,
    samples: usize,
}

impl Plain {
    pub fn new(case: Case, threads: usize) -> Self {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let device = Device::flex().autodiff();
        let model = case.model();
        let initializer = model.initializer(tinderbox::deferred::random::Seed::new(0));
        let module = model
            .materialize(&device, &initializer)
            .expect("it is materialized");
        let batch = case.batch(&device);
        Self {
            pool: Arc::new(pool.expect("threads start")),
            module: Some(module),
            optimizer: SgdConfig::new().init(),
            parts: split_batch(&batch, case.micro_batches).expect("it can be split"),
            samples: case.samples,
        }
    }

    /// Runs a step and returns its seconds.
    pub fn step(&mut self) -> f64 {
        let pool = self.pool.clone();
        pool.install(|| {
            let started = Instant::now();
            let module = self.module.take().expect("each step restores the module");
            let parts = weighted(self.parts.iter().cloned(), self.samples);
            let summed = gradients(&module, parts, |batch| loss(&module, batch));
            self.module = Some(self.optimizer.step(LR, module, summed));
            started.elapsed().as_secs_f64()
        })
    }
}
