//! A training step of a model that does not fit in memory, and its bound.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use burn::nn::Linear;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use tinderbox::deferred::peak_process_bytes;
use tinderbox::{
    Deferred, DiskRate, MemoryBudget, Outputs, Plan, Planner, Request, Run, SavedOptimizer, Source,
    StageStore, Streamed, StreamedTraining, Trace, Traceable, UpdatedStage, WorkingDir, calibrate,
};

use crate::figures::{figure, median};
use crate::pass::{FewValues, seconds};
use crate::{BUDGET, model, raw};

/// Each reads and writes four times fourteen GiB, and what one leaves in the process' memory is in the way of the next.
const TURNS: usize = 1;

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

/// Measures a step, what it reads and writes alone, and its computation alone, in turn.
pub fn measure(dir: &Path) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let machine = calibrate(&Device::flex(), 1, threads).expect("the device is measured");
    let model = model::deferred();
    let traced = model.trace(&model::batch(), loss);
    let traced = traced.expect("the model is traced");
    let budget = MemoryBudget::Bytes(BUDGET);
    let plan = Planner::new(&traced, &machine).streamed(budget).plan();
    let plan = plan.expect("the model is planned");
    let checkpoint = Run::local(dir.join(model::RUN)).open(0);
    let checkpoint = checkpoint.expect("it was written");
    let device = Device::flex();
    let requests = model.parameters().iter().map(|of| Request::of(of, &device));
    let requests: Vec<Request> = requests.collect();
    let checkpoint = Arc::new(checkpoint);
    // The parameters, and twice their bytes of state.
    let written = 3 * model.parameters().bytes();
    let (mut disk, mut computes, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    let mut read = 0;
    for _ in 0..TURNS {
        // What one holds would be in the way of the other, so both are started anew; the first step begins with nothing in memory.
        let store = WorkingDir::open(dir.join("work"), &model, checkpoint.clone());
        let store = store.expect("the directory can be used");
        let mut streamed = start(&model, &traced, &plan, store);
        step(&mut streamed);
        steps.push(seconds(|| step(&mut streamed)));
        read = streamed
            .predict(DiskRate::new(1))
            .expect("a step was planned")
            .read_bytes;
        drop(streamed);
        // The disk may have no room for both.
        fs::remove_dir_all(dir.join("work")).expect("the directory is removed");
        let few = Arc::new(FewValues::read(&checkpoint, &requests[..1]));
        let mut computing = start(&model, &traced, &plan, Nothing(few));
        step(&mut computing);
        computes.push(seconds(|| step(&mut computing)));
        drop(computing);
        disk.push(seconds(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| raw::read(&dir.join(model::RUN), threads, Some(read)));
                write(&dir.join("written"), written);
            });
        }));
    }
    let (disk, compute, step) = (median(disk), median(computes), median(steps));
    figure("train_read_gib", read as f64 / (1u64 << 30) as f64, "GiB");
    figure(
        "train_written_gib",
        written as f64 / (1u64 << 30) as f64,
        "GiB",
    );
    figure("train_disk_s", disk, "s");
    figure("train_compute_s", compute, "s");
    figure("train_step_s", step, "s");
    figure("train_vs_bound", disk.max(compute) / step, "ratio");
    if let Some(peak) = peak_process_bytes() {
        figure("train_peak_vs_budget", peak as f64 / BUDGET as f64, "ratio");
    }
    println!("seconds {step}");
}

fn start(
    model: &Deferred<Vec<Linear>>,
    traced: &Trace<Tensor<2>>,
    plan: &Plan,
    store: impl StageStore + 'static,
) -> Streamed<Vec<Linear>, Tensor<2>> {
    let builder = Streamed::new(model, traced, plan).optimizer(AdamWConfig::new());
    let started = builder
        .memory(MemoryBudget::Bytes(BUDGET))
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
