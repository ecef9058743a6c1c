//! A training step of a model that does not fit in memory, and its bound.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use burn::nn::Linear;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use tinderbox::checkpoint::Run;
use tinderbox::deferred::{Request, peak_process_bytes};
use tinderbox::pipeline::{SavedOptimizer, StageStore, StreamedTraining, UpdatedStage, calibrate};
use tinderbox::planner::DiskRate;
use tinderbox::{
    Checkpoint, Deferred, MemoryBudget, Outputs, Plan, Planner, Source, Streamed, Trace, Traceable,
    WorkingDir,
};

use crate::BENCH;
use crate::pass::{FewValues, seconds};
use crate::{BUDGET, model, raw};

/// A store without values, so that a step only computes.
struct Nothing(Arc<dyn Source>);

impl StageStore for Nothing {
    fn start(&self, _: &StreamedTraining<'_>) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }

    fn step(&self) -> u64 {
        0
    }

    fn source(&self) -> Arc<dyn Source> {
        self.0.clone()
    }

    fn optimizer(&self) -> Option<Arc<dyn SavedOptimizer>> {
        None
    }

    fn write(&self, _: u64, _: UpdatedStage) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }

    fn commit(&self, _: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}

#[expect(clippy::ptr_arg, reason = "the type of the model")]
fn loss(layers: &Vec<Linear>, x: Tensor<2>) -> Outputs {
    let y = layers
        .iter()
        .fold(x, |x, layer| x.clone() + layer.forward(x).tanh());
    Outputs::loss(y.powf_scalar(2.0).mean())
}

/// What both processes have.
struct Setup {
    model: Deferred<Vec<Linear>>,
    traced: Trace<Tensor<2>>,
    plan: Plan,
    checkpoint: Arc<Checkpoint>,
}

impl Setup {
    fn new(dir: &Path) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let machine = calibrate(&Device::flex(), 1, threads).expect("the device is measured");
        let model = model::deferred();
        let traced = model.trace(&model::batch(), 1, loss);
        let traced = traced.expect("the model is traced");
        let planner = Planner::new(&traced, &machine).streamed(MemoryBudget::Bytes(BUDGET));
        let plan = planner.plan().expect("the model is planned");
        let checkpoint = Run::local(dir.join(model::RUN)).open(0);
        Self {
            checkpoint: Arc::new(checkpoint.expect("it was written")),
            model,
            traced,
            plan,
        }
    }
}

/// Measures the computation of a step alone, in a process of its own, because what it leaves in memory would be in the way.
pub fn measure_compute(dir: &Path) {
    let setup = Setup::new(dir);
    let device = Device::flex();
    let table = setup.model.parameters();
    let first = table.iter().next();
    let request = Request::of(table, first.expect("there are layers"), &device);
    let few = Arc::new(FewValues::read(&setup.checkpoint, &[request]));
    let mut computing = start(&setup, Nothing(few));
    step(&mut computing);
    println!("seconds {}", seconds(|| step(&mut computing)));
}

/// Measures a step, and what it reads and writes alone.
pub fn measure(dir: &Path, compute: f64) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let setup = Setup::new(dir);
    let store = WorkingDir::open(dir.join("work"), &setup.model, setup.checkpoint.clone());
    let mut streamed = start(&setup, store.expect("the directory can be used"));
    // The first step begins with nothing in memory.
    step(&mut streamed);
    let step = seconds(|| step(&mut streamed));
    let predicted = streamed.predict(DiskRate::new(1));
    let read = predicted.expect("a step was planned").read_bytes;
    drop(streamed);
    // The disk may have no room for both.
    fs::remove_dir_all(dir.join("work")).expect("the directory is removed");
    // The parameters, and twice their bytes of state.
    let written = 3 * setup.model.parameters().bytes();
    let disk = seconds(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| raw::read(&dir.join(model::RUN), threads, Some(read)));
            write(&dir.join("written"), written);
        });
    });
    BENCH.figure("train_read_gib", read as f64 / (1u64 << 30) as f64, "GiB");
    BENCH.figure(
        "train_written_gib",
        written as f64 / (1u64 << 30) as f64,
        "GiB",
    );
    BENCH.figure("train_disk_s", disk, "s");
    BENCH.figure("train_compute_s", compute, "s");
    BENCH.figure("train_step_s", step, "s");
    BENCH.figure("train_vs_bound", disk.max(compute) / step, "ratio");
    if let Some(peak) = peak_process_bytes() {
        BENCH.figure("train_peak_vs_budget", peak as f64 / BUDGET as f64, "ratio");
    }
    println!("seconds {step}");
}

fn start(setup: &Setup, store: impl StageStore + 'static) -> Streamed<Vec<Linear>, Tensor<2>> {
    let builder = Streamed::builder(&setup.model, &setup.traced, &setup.plan);
    let started = builder
        .optimizer(AdamWConfig::new())
        .memory_limit(MemoryBudget::Bytes(BUDGET))
        .store(store)
        .start();
    started.expect("the limit suffices")
}

fn step(streamed: &mut Streamed<Vec<Linear>, Tensor<2>>) {
    streamed
        .step(1e-3, model::batch())
        .expect("a step succeeds");
}

/// Writes so many bytes to a file, makes them durable, and removes it.
fn write(path: &Path, bytes: u64) {
    const PIECE: usize = 8 << 20;
    let piece: Vec<u8> = (0..PIECE).map(|at| (at * 7) as u8).collect();
    let mut file = File::create(path).expect("a file can be made");
    let mut left = bytes as usize;
    while left > 0 {
        let now = left.min(PIECE);
        file.write_all(&piece[..now]).expect("the file is written");
        left -= now;
    }
    file.sync_all().expect("the file is durable");
    fs::remove_file(path).expect("the file is removed");
}
