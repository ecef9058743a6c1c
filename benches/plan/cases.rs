//! The models whose plans are executed.

use std::time::Instant;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use tinderbox::pipeline::Profiler;
use tinderbox::schedule::{Timeline, simulate};
use tinderbox::{
    Batch, Cut, Deferred, Machine, Outputs, Pipeline, Plan, Planner, ScheduleKind, Trace, Traceable,
};
use tinderbox_models::language_model::{Gpt, GptConfig};

pub const RANKS: usize = 2;
pub const MICRO_BATCHES: usize = 8;

/// A traced model with a batch.
pub struct Case<M: Module, B> {
    pub name: &'static str,
    pub model: Deferred<M>,
    pub trace: Trace<B>,
    pub batch: B,
}

pub type Tokens = (Tensor<2, Int>, Tensor<2, Int>);

/// Returns the language model of the example with six layers and a vocabulary of 8,192, whose head costs as
/// much as several layers.
pub fn language_model() -> Case<Gpt, Tokens> {
    const VOCABULARY: usize = 8192;
    let config = GptConfig::new(VOCABULARY).with_layers(6);
    let length = config.context;
    let model = Deferred::new(move |device| config.init(device)).expect("it is recorded");
    let tokens = |seed: i64| {
        let values: Vec<i64> = (0..32 * length as i64)
            .map(|index| (index * 7919 + seed) % VOCABULARY as i64)
            .collect();
        Tensor::<2, Int>::from_data(TensorData::new(values, [32, length]), &Device::flex())
    };
    let batch = (tokens(1), tokens(2));
    Case::new(
        "language model",
        model,
        batch,
        |gpt: &Gpt, (tokens, targets): Tokens| Outputs::loss(gpt.loss(tokens, targets).0),
    )
}

/// Layers of increasing width.
#[derive(Module, Debug)]
pub struct Funnel {
    layers: Vec<Linear>,
}

/// Returns a model whose last layers take most of the time.
pub fn unbalanced() -> Case<Funnel, (Tensor<2>, Tensor<2>)> {
    const WIDTHS: [usize; 7] = [128, 256, 384, 512, 768, 1024, 1536];
    let init = |device: &Device| Funnel {
        layers: WIDTHS
            .windows(2)
            .map(|pair| LinearConfig::new(pair[0], pair[1]).init(device))
            .collect(),
    };
    let random = |width| Tensor::random([512, width], Distribution::Default, &Device::flex());
    let batch = (random(WIDTHS[0]), random(WIDTHS[6]));
    let model = Deferred::new(init).expect("it is recorded");
    Case::new(
        "unbalanced",
        model,
        batch,
        |net: &Funnel, (x, y): (Tensor<2>, Tensor<2>)| {
            let x = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
            Outputs::loss((x - y).powi_scalar(2).mean())
        },
    )
}

impl<M: Module + Sync + 'static, B: Batch> Case<M, B> {
    fn new(
        name: &'static str,
        model: Deferred<M>,
        batch: B,
        forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
    ) -> Self {
        let trace = model.trace(&batch, MICRO_BATCHES, forward);
        let trace = trace.expect("it is traced");
        Self {
            name,
            model,
            trace,
            batch,
        }
    }

    /// Returns the plan for measured times.
    pub fn plan(&self) -> Plan {
        let profile = Profiler::new(&self.trace)
            .beside(RANKS)
            .measure()
            .expect("it is measured");
        println!("{}\n{profile}", self.name);
        let times = profile.times(&self.trace).expect("it is of this model");
        self.planner().times(times).plan().expect("it is planned")
    }

    /// Returns the plan for manual cuts.
    pub fn cut(&self, cuts: &[Cut]) -> Plan {
        self.planner().cuts(cuts).plan().expect("it is cut")
    }

    fn planner(&self) -> Planner<'_, B> {
        let machine = Machine::local(RANKS).expect("there are ranks");
        Planner::new(&self.trace, &machine).schedule(ScheduleKind::OneFOneB)
    }

    /// Starts a pipeline for a plan with one thread per rank.
    pub fn pipeline(&self, plan: &Plan) -> Running<M, B> {
        let pipeline = Pipeline::builder(&self.model, &self.trace, plan)
            .optimizer(AdamWConfig::new())
            .threads_per_rank(1)
            .measure()
            .start()
            .expect("it starts");
        Running {
            pipeline,
            batch: self.batch.clone(),
            timelines: Vec::new(),
        }
    }
}

/// A pipeline with its batch.
pub struct Running<M: Module, B> {
    pipeline: Pipeline<M, B>,
    batch: B,
    timelines: Vec<Timeline>,
}

impl<M: Module + Sync + 'static, B: Batch> Running<M, B> {
    /// Runs a step and returns its seconds.
    pub fn step(&mut self) -> f64 {
        let started = Instant::now();
        let step = self.pipeline.step(1e-3, self.batch.clone());
        let seconds = started.elapsed().as_secs_f64();
        self.timelines.extend(step.expect("it trains").timeline);
        seconds
    }

    /// Prints the predicted times of the stages and the medians of the measured times.
    pub fn print_stages(&self) {
        let plan = self.pipeline.plan();
        let predicted = plan.costs();
        let measured = predicted.clone().with_times(&self.timelines);
        let ms = |nanoseconds: u64| nanoseconds as f64 / 1e6;
        let schedule = plan.lists_of_step().expect("it is a named one");
        let again = simulate(&schedule, &plan.dependencies(), &measured).expect("it runs");
        let mut makespans: Vec<u64> = self.timelines.iter().map(|t| t.makespan()).collect();
        makespans.sort_unstable();
        println!(
            "from the measured times of its stages {:.1} ms; from first action to last {:.1} ms",
            ms(again.makespan()),
            ms(makespans[makespans.len() / 2])
        );
        for (index, (p, m)) in predicted.stages.iter().zip(&measured.stages).enumerate() {
            println!(
                "stage {index}: F {:.2} ms, measured {:.2}; B {:.2} ms, measured {:.2}; update {:.2} ms, measured {:.2}",
                ms(p.forward),
                ms(m.forward),
                ms(p.backward),
                ms(m.backward),
                ms(p.update),
                ms(m.update),
            );
        }
    }

    pub fn plan(&self) -> &Plan {
        self.pipeline.plan()
    }
}
