//! Peak heap memory of a resume, in addition to the pipeline's. The only test of its process.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use peak_alloc::PeakAlloc;
use tinderbox::{Checkpoints, Deferred, Machine, Outputs, Pipeline, Traceable};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const MIB: usize = 1 << 20;
/// Side of a matrix of 1 MiB in f32.
const SIDE: usize = 512;
const TENSOR: usize = SIDE * SIDE * 4;
const LAYERS: usize = 16;
const PARAMETERS: usize = LAYERS * TENSOR;
/// Allowed for data other than tensors.
const BESIDE: usize = MIB / 2;

#[derive(Module, Debug)]
struct Tower {
    layers: Vec<Linear>,
}

fn start(stages: usize, trains: bool) -> Pipeline<Tower, Tensor<2>> {
    let config = LinearConfig::new(SIDE, SIDE).with_bias(false);
    let model = Deferred::new(move |device: &Device| Tower {
        layers: (0..LAYERS).map(|_| config.init(device)).collect(),
    });
    let model = model.unwrap();
    let trace = model.trace(&batch(), 2, |tower: &Tower, x| {
        let y = tower.layers.iter().fold(x, |x, layer| layer.forward(x));
        Outputs::loss(y.mean())
    });
    let trace = trace.unwrap();
    let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
    let builder = Pipeline::builder(&model, &trace, &plan);
    match trains {
        true => builder.optimizer(AdamWConfig::new()).start(),
        false => builder.start(),
    }
    .unwrap()
}

fn batch() -> Tensor<2> {
    Tensor::ones([2, SIDE], &Device::flex())
}

/// The temporary peak memory of a resume, and the change of the memory held after it, in bytes.
fn resume(saves: &Checkpoints, pipeline: &mut Pipeline<Tower, Tensor<2>>) -> (usize, isize) {
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    saves.resume(pipeline).unwrap().unwrap();
    let (after, peak) = (HEAP.current_usage(), HEAP.peak_usage());
    let grown = after as isize - before as isize;
    let beside = peak - after;
    println!(
        "{:.1} MiB beside what is held, which grew by {:.1} MiB",
        beside as f64 / MIB as f64,
        grown as f64 / MIB as f64
    );
    (beside, grown)
}

#[test]
fn a_resume_needs_at_most_one_tensor_per_rank() {
    let dir = tempfile::tempdir().unwrap();
    let saves = Checkpoints::open(dir.path()).unwrap();
    let mut first = start(2, true);
    first.step(1e-3, batch()).unwrap();
    saves.save(&mut first, 0).unwrap();
    drop(first);
    // The first run creates threads and their buffers.
    resume(&saves, &mut start(4, true));
    let mut failures = Vec::new();
    let mut check = |what: &str, stages, (beside, grown): (usize, isize), expected: usize| {
        let about = (expected as isize - grown).unsigned_abs() <= BESIDE;
        assert!(
            about,
            "{what}: what is held grew by {grown} bytes, not {expected}"
        );
        // Each rank loads on its own thread.
        if beside > stages * TENSOR + BESIDE {
            failures.push(format!("{what}: {beside} bytes beside what is held"));
        }
    };
    for stages in [1, 2, 4] {
        let mut fresh = start(stages, true);
        let state = 2 * PARAMETERS;
        let what = format!("a new pipeline of {stages} stages");
        check(&what, stages, resume(&saves, &mut fresh), state);
        let what = format!("a resumed pipeline of {stages} stages");
        check(&what, stages, resume(&saves, &mut fresh), 0);
        let mut evaluates = start(stages, false);
        let what = format!("an evaluation in {stages} stages");
        check(&what, stages, resume(&saves, &mut evaluates), 0);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
