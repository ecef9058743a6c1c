//! The measured process: a pass, and its bound.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use burn::nn::Linear;
use burn::tensor::{Device, Tensor};
use tinderbox::checkpoint::{LoadOptions, Run};
use tinderbox::deferred::{Observer, Request, Uncached, peak_process_bytes, read_values};
use tinderbox::error::SourceError;
use tinderbox::pipeline::{Profiler, calibrate};
use tinderbox::planner::DiskRate;
use tinderbox::{
    Deferred, DynTensor, MemoryBudget, Plan, Planner, Pretrained, Source, Streamed, Trace,
    Traceable,
};
use tinderbox_benches::figures::median;

use crate::BENCH;
use crate::{BUDGET, model, raw};

/// Gives a few values in turn for the parameters, so that a pass only computes, with weights that are not in the cache of a core.
pub struct FewValues {
    values: Vec<DynTensor>,
    next: AtomicUsize,
}

impl FewValues {
    pub fn read(source: &dyn Source, requests: &[Request]) -> Self {
        let values = read_values(requests, source, &());
        Self {
            values: values.expect("the weights are read"),
            next: AtomicUsize::new(0),
        }
    }
}

impl Source for FewValues {
    fn load(&self, requests: &[Request], _: &dyn Observer) -> Result<Vec<DynTensor>, SourceError> {
        let next = |_| self.next.fetch_add(1, Ordering::Relaxed) % self.values.len();
        Ok(requests
            .iter()
            .map(next)
            .map(|at| self.values[at].clone())
            .collect())
    }

    fn describe(&self) -> String {
        "a few values".to_owned()
    }
}

/// The seconds of processor time that this process has used.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

pub fn seconds(run: impl FnOnce()) -> f64 {
    let started = Instant::now();
    run();
    started.elapsed().as_secs_f64()
}

/// The file of the plan.
const PLAN: &str = "plan.json";

/// Measures the blocks of the model, and writes its plan.
pub fn plan(dir: &Path) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let machine = calibrate(&Device::flex(), 1, threads).expect("the device is measured");
    let traced = traced(&model::deferred());
    let profile = Profiler::new(&traced)
        .threads_per_rank(threads)
        .streamed()
        .measure();
    let times = profile.expect("the model is measured").times(&traced);
    let planner = Planner::new(&traced, &machine).times(times.expect("it is of this model"));
    let plan = planner.streamed(MemoryBudget::Bytes(BUDGET)).plan();
    let plan = plan.expect("the model is planned");
    plan.save(dir.join(PLAN)).expect("the plan is written");
}

fn traced(model: &Deferred<Vec<Linear>>) -> Trace<Tensor<2>> {
    let traced = model.trace_forward(&model::batch(), model::forward);
    traced.expect("the forward is traced")
}

pub fn measure(dir: &Path) {
    let plan = Plan::load(dir.join(PLAN)).expect("it was written");
    let model = model::deferred();
    let checkpoint = Run::local(dir.join(model::RUN)).open(0);
    let checkpoint = checkpoint.expect("it was written");
    let found = measure_source(&model, &plan, &checkpoint, &dir.join(model::RUN));
    BENCH.figure("model_vs_budget", found.bytes / BUDGET as f64, "ratio");
    BENCH.figure("kept_share", 1.0 - found.read_part, "ratio");
    BENCH.figure("read_s", found.read_s, "s");
    BENCH.figure("load_s", found.load_s, "s");
    BENCH.figure("load_busy", found.busy, "ratio");
    BENCH.figure("compute_s", found.compute_s, "s");
    BENCH.figure("planned_compute_s", found.planned_compute_s, "s");
    BENCH.figure("predicted_s", found.predicted_s, "s");
    BENCH.figure("pass_s", found.pass_s, "s");
    BENCH.figure("pass_vs_bound", found.vs_bound(), "ratio");
    BENCH.figure(
        "predicted_vs_measured",
        found.predicted_s / found.pass_s,
        "ratio",
    );

    let weights = Pretrained::open(dir.join(model::PYTORCH)).expect("they were written");
    let options = LoadOptions::default().pytorch(model.parameters());
    let transposed = weights.source(options).expect("no two have one name");
    let found = measure_source(&model, &plan, &transposed, &dir.join(model::PYTORCH));
    BENCH.figure("transposed_load_s", found.load_s, "s");
    BENCH.figure("transposed_load_busy", found.busy, "ratio");
    BENCH.figure(
        "transposed_predicted_vs_measured",
        found.predicted_s / found.pass_s,
        "ratio",
    );
    BENCH.figure("transposed_pass_s", found.pass_s, "s");
    BENCH.figure("transposed_pass_vs_bound", found.vs_bound(), "ratio");
    if let Some(peak) = peak_process_bytes() {
        BENCH.figure("peak_vs_budget", peak as f64 / BUDGET as f64, "ratio");
    }
    println!("seconds {}", found.pass_s);
}

/// The seconds of a pass, and of its parts.
struct Found {
    bytes: f64,
    /// The part of the bytes that a pass reads.
    read_part: f64,
    /// Of system calls alone.
    read_s: f64,
    /// Of the source.
    load_s: f64,
    /// The fraction of the cores that are busy meanwhile.
    busy: f64,
    compute_s: f64,
    pass_s: f64,
    /// Of the blocks' measured times.
    planned_compute_s: f64,
    predicted_s: f64,
}

impl Found {
    fn vs_bound(&self) -> f64 {
        self.read_s.max(self.compute_s) / self.pass_s
    }
}

/// Measures a pass, what it reads alone, and its computation alone, in turn.
fn measure_source<S: Source + Clone + 'static>(
    model: &Deferred<Vec<Linear>>,
    plan: &Plan,
    source: &S,
    dir: &Path,
) -> Found {
    let traced = traced(model);
    let budget = MemoryBudget::Bytes(BUDGET);
    let device = Device::flex();
    let table = model.parameters();
    let requests = table.iter().map(|of| Request::of(table, of, &device));
    let requests: Vec<Request> = requests.collect();
    let bytes: u64 = requests.iter().map(Request::bytes).sum();
    let start = |source: Box<dyn Source>| {
        let started = Streamed::builder(model, &traced, plan)
            .memory_limit(budget)
            .source(source)
            .start();
        started.expect("the limit suffices")
    };
    let evaluate = |streamed: &mut Streamed<_, _>| {
        streamed.evaluate(model::batch()).expect("a pass succeeds");
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut reads, mut loads, mut busies) = (Vec::new(), Vec::new(), Vec::new());
    let (mut computes, mut passes) = (Vec::new(), Vec::new());
    let mut last = None;
    for turn in 0..=BENCH.turns() {
        drop(last.take());
        let read = seconds(|| raw::read(dir, threads, None));
        let processor = processor_seconds();
        let load = seconds(|| {
            // As many at a time as a pass reads.
            for group in requests.chunks(4) {
                let read = read_values(group, &Uncached(source), &());
                read.expect("the weights are read");
            }
        });
        let busy = (processor_seconds() - processor) / (load * threads as f64);
        let compute = {
            let mut computing = start(Box::new(FewValues::read(source, &requests[..8])));
            evaluate(&mut computing);
            seconds(|| evaluate(&mut computing))
        };
        // What it holds would be in the way of what is read alone, so it is started anew; its first pass reads everything.
        let mut streamed = start(Box::new(source.clone()));
        evaluate(&mut streamed);
        let pass = seconds(|| evaluate(&mut streamed));
        last = Some(streamed);
        // The first loads programs and allocates memory.
        if turn > 0 {
            reads.push(read);
            loads.push(load);
            busies.push(busy);
            computes.push(compute);
            passes.push(pass);
        }
    }
    let load_s = median(loads);
    let last = last.expect("there is a turn");
    let busy = median(busies);
    let predicted = last.predict(DiskRate {
        bytes_per_s: (bytes as f64 / load_s) as u64,
        busy_permille: (1000.0 * busy) as u64,
    });
    let predicted = predicted.expect("it was traced for evaluation");
    let read_part = predicted.read_bytes as f64 / bytes as f64;
    Found {
        bytes: bytes as f64,
        read_part,
        read_s: median(reads) * read_part,
        load_s: load_s * read_part,
        busy,
        compute_s: median(computes),
        pass_s: median(passes),
        planned_compute_s: predicted.compute_ns as f64 / 1e9,
        predicted_s: predicted.pass_ns as f64 / 1e9,
    }
}
