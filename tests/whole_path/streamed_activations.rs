//! Training steps whose activations do not fit in memory from the forward to the backward.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use tinderbox::error::PipelineError;
use tinderbox::pipeline::{SavedOptimizer, StageStore, StreamedTraining, UpdatedStage};
use tinderbox::planner::DiskRate;
use tinderbox::world::with_causes;
use tinderbox::{
    Deferred, Machine, MemoryBudget, Outputs, Pipeline, Planner, ScheduleKind, Source, Streamed,
    Trace, Traceable, WorkingDir,
};

use crate::models::floats;
use crate::streamed::least;
use crate::streamed_training::{FINE, SEED, working_dir};

const LAYERS: usize = 16;
const WIDTH: usize = 8;
const SAMPLES: usize = 512;
/// Of the values between two layers.
const BOUNDARY_BYTES: u64 = (SAMPLES * WIDTH * 4) as u64;

type Tower = Vec<Linear>;

fn tower(layers: usize) -> Deferred<Tower> {
    let layer = |device: &Device| LinearConfig::new(WIDTH, WIDTH).init(device);
    Deferred::new(move |device: &Device| (0..layers).map(|_| layer(device)).collect()).unwrap()
}

/// The input of each layer is also the input of its backward; what the first one makes is read by all that are even. Each has a
/// half of a view for its backward.
fn forward(layers: &Tower, x: Tensor<2>) -> Outputs {
    let first = layers[0].forward(x);
    let x = first.clone();
    let x = layers
        .iter()
        .enumerate()
        .skip(1)
        .fold(x, |x, (index, layer)| {
            let y = layer.forward(x);
            let [left, right] = y.chunk(2, 1).try_into().unwrap();
            let y = Tensor::cat(vec![left.sin() * right.clone(), right], 1);
            match index % 2 {
                0 => y + first.clone(),
                _ => y,
            }
        });
    Outputs::loss(x.powf_scalar(2.0).mean())
}

/// Micro-batches of `SAMPLES` samples.
fn batch(step: u64, micro_batches: usize) -> Tensor<2> {
    floats([micro_batches * SAMPLES, WIDTH], step, &Device::flex())
}

fn traced(model: &Deferred<Tower>, micro_batches: usize) -> Trace<Tensor<2>> {
    let batch = batch(0, micro_batches);
    model.trace(&batch, micro_batches, forward).unwrap()
}

/// A working directory with another place for activations.
struct Scratch {
    store: WorkingDir,
    dir: Option<PathBuf>,
}

impl StageStore for Scratch {
    fn start(&self, training: &StreamedTraining<'_>) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.store.start(training)
    }

    fn step(&self) -> u64 {
        self.store.step()
    }

    fn source(&self) -> Arc<dyn Source> {
        self.store.source()
    }

    fn optimizer(&self) -> Option<Arc<dyn SavedOptimizer>> {
        self.store.optimizer()
    }

    fn scratch_dir(&self) -> Option<PathBuf> {
        self.dir.clone()
    }

    fn write(&self, step: u64, updated: UpdatedStage) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.store.write(step, updated)
    }

    fn commit(&self, step: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.store.commit(step)
    }
}

fn start(
    model: &Deferred<Tower>,
    micro_batches: usize,
    limit: u64,
    (dir, scratch): (&Path, Option<PathBuf>),
) -> Result<Streamed<Tower, Tensor<2>>, PipelineError> {
    let traced = traced(model, micro_batches);
    let plan = traced.plan_streamed(FINE).unwrap();
    assert!(plan.stages.len() >= LAYERS);
    let store = Scratch {
        store: working_dir(model, dir),
        dir: scratch,
    };
    Streamed::builder(model, &traced, &plan)
        .seed(SEED)
        .optimizer(SgdConfig::new())
        .memory_limit(MemoryBudget::Values(limit))
        .store(store)
        .start()
}

fn least_of(model: &Deferred<Tower>, micro_batches: usize, scratch: Option<PathBuf>) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    least(start(model, micro_batches, 0, (dir.path(), scratch)))
}

/// A step needs the activations of a few layers at a time, whatever their number, and computes what a pipeline does that keeps all.
#[test]
fn activations_are_written_that_do_not_fit() {
    let model = tower(LAYERS);
    for micro_batches in [1, 4] {
        let traced = traced(&model, micro_batches);
        let whole = traced.plan_at(&[]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let builder = Pipeline::builder(&model, &traced, &whole).seed(SEED);
        let mut pipeline = builder.optimizer(SgdConfig::new()).start().unwrap();
        let losses = (0..3).map(|step| {
            let output = pipeline.step(0.1, batch(step, micro_batches));
            output.unwrap().loss.to_bits()
        });
        let losses: Vec<u64> = losses.collect();

        let not_there = dir.path().join("not yet there");
        let scratch = Some(not_there.clone());
        let kept = least_of(&model, micro_batches, None);
        let least = least_of(&model, micro_batches, scratch.clone());
        // Each layer keeps its input and the argument of its sine.
        let boundary = BOUNDARY_BYTES * micro_batches as u64;
        assert!(kept > 2 * LAYERS as u64 * boundary, "{kept}");
        assert!(least < kept / 2, "{least} of {kept}");
        let of_twice = least_of(&tower(2 * LAYERS), micro_batches, scratch.clone());
        assert_eq!(of_twice, least);
        for limit in [least, (least + kept) / 2, 2 * kept] {
            let place = dir.path().join(limit.to_string());
            let mut streamed =
                start(&model, micro_batches, limit, (&place, scratch.clone())).unwrap();
            for (step, loss) in losses.iter().enumerate() {
                // An evaluation in between, which keeps what it makes.
                if limit > least {
                    streamed.evaluate(batch(7, micro_batches)).unwrap();
                }
                let output = streamed
                    .step(0.1, batch(step as u64, micro_batches))
                    .unwrap();
                assert_eq!(output.loss.to_bits(), *loss, "step {step}, limit {limit}");
            }
            let spilled = streamed
                .predict(DiskRate::new(1 << 30))
                .unwrap()
                .spilled_bytes;
            // At least what does not fit.
            assert!(
                spilled >= kept.saturating_sub(limit) && spilled < kept,
                "{spilled} of {kept} with {limit}"
            );
            assert_eq!(
                spilled == 0,
                limit > kept,
                "{spilled} with {limit} of {kept}"
            );
        }
        // The file has no name.
        assert_eq!(std::fs::read_dir(not_there).unwrap().count(), 0);
    }
}

/// Under other schedules, and where stages compute activations again.
#[test]
fn other_orders_of_a_step() {
    let model = tower(LAYERS);
    let traced = traced(&model, 3);
    let whole = traced.plan_at(&[]).unwrap();
    let builder = Pipeline::builder(&model, &traced, &whole).seed(SEED);
    let builder = builder.optimizer(SgdConfig::new());
    let mut pipeline = builder.start().unwrap();
    let losses = (0..2).map(|step| pipeline.step(0.1, batch(step, 3)).unwrap().loss.to_bits());
    let losses: Vec<u64> = losses.collect();
    let machine = Machine::local(1).unwrap();
    let mut spilled = 0;
    for kind in [
        ScheduleKind::LoopedBfs,
        ScheduleKind::Interleaved1F1B,
        ScheduleKind::InterleavedZb,
    ] {
        for recompute in [false, true] {
            let planner = Planner::new(&traced, &machine).streamed(FINE);
            let planner = planner.schedule(kind);
            let plan = planner.recompute(|_| recompute).plan().unwrap();
            let dir = tempfile::tempdir().unwrap();
            let start = |limit: u64| {
                Streamed::builder(&model, &traced, &plan)
                    .seed(SEED)
                    .optimizer(SgdConfig::new())
                    .memory_limit(MemoryBudget::Values(limit))
                    .store(working_dir(&model, dir.path()))
                    .start()
            };
            let mut streamed = start(least(start(0))).unwrap();
            for (step, loss) in losses.iter().enumerate() {
                let output = streamed.step(0.1, batch(step as u64, 3)).unwrap();
                assert_eq!(
                    output.loss.to_bits(),
                    *loss,
                    "{kind}, recompute {recompute}"
                );
            }
            spilled += streamed
                .predict(DiskRate::new(1 << 30))
                .unwrap()
                .spilled_bytes;
        }
    }
    assert!(spilled > 0);
}

#[test]
fn a_directory_that_can_not_be_written_is_named() {
    let model = tower(LAYERS);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a file");
    std::fs::write(&file, "").unwrap();
    let least = least_of(&model, 1, Some(file.clone()));
    let place = dir.path().join("run");
    let mut streamed = start(&model, 1, least, (&place, Some(file.clone()))).unwrap();
    let message = with_causes(&streamed.step(0.1, batch(0, 1)).map(drop).unwrap_err());
    let expected = format!(
        "activations that do not fit in memory could not be written to {}",
        file.display()
    );
    assert!(message.contains(&expected), "{message}");
}

/// Activations of 130 MiB with 48 MiB more than the process has without them.
#[test]
#[cfg(target_os = "linux")]
fn a_step_stays_below_its_limit() {
    use crate::memory::{MIB, status, under_limit};

    const LIMIT: u64 = 48 * MIB;
    let test = "streamed_activations::a_step_stays_below_its_limit";
    under_limit(test, LIMIT, |_| {
        let layer = |device: &Device| LinearConfig::new(256, 256).init(device);
        let layers = move |device: &Device| (0..64).map(|_| layer(device)).collect::<Tower>();
        let model = Deferred::new(layers).unwrap();
        let batch = Tensor::<2>::ones([1024, 256], &Device::flex());
        let traced = model.trace(&batch, 1, forward).unwrap();
        let budget = MemoryBudget::Bytes(status("VmRSS") + LIMIT);
        let plan = traced.plan_streamed(budget).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut streamed = Streamed::builder(&model, &traced, &plan)
            .seed(SEED)
            .threads_per_rank(1)
            .optimizer(SgdConfig::new())
            .memory_limit(budget)
            .store(working_dir(&model, dir.path()))
            .start()
            .unwrap();
        for _ in 0..2 {
            streamed.step(0.1, batch.clone()).unwrap();
        }
        let MemoryBudget::Bytes(limit) = budget else {
            unreachable!("it was set above");
        };
        let spilled = streamed
            .predict(DiskRate::new(1 << 30))
            .unwrap()
            .spilled_bytes;
        assert!(spilled > 64 * MIB, "{} MiB are written", spilled / MIB);
        let peak = status("VmHWM");
        assert!(peak <= limit, "{} MiB of {} MiB", peak / MIB, limit / MIB);
    });
}
