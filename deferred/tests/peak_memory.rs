//! Peak memory of a run, measured on the heap. One test, alone in its process.

use burn::tensor::{Device, Tensor, TensorData};
use peak_alloc::PeakAlloc;
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{Executor, Program, RandomKeys, RunContext};
use tinderbox_fake::{DynTensor, RecordOptions, record};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Side of a matrix of 1 MiB.
const SIDE: usize = 512;
const STEPS: usize = 40;
const MIB: usize = 1 << 20;

/// Runs `steps` on a matrix that is not shared. The heap may grow beyond its size with the
/// matrix by this many matrices, and a little for the interpreter itself.
fn check(name: &str, more_matrices: usize, steps: impl Fn(Tensor<2>) -> Tensor<2>) {
    let (ids, recording) = record(&RecordOptions::default(), |device| {
        let x = Tensor::<2>::zeros([SIDE, SIDE], device);
        [DynTensor::from(x.clone()), DynTensor::from(steps(x))]
    })
    .unwrap();
    let [x, y] = ids.map(|id| recording.value_of(id.captured_id().unwrap()).unwrap());
    let graph = recording.graph();
    let program = Program::new(graph, graph.node_ids(), &[x], &[y], &RandomKeys::new()).unwrap();
    assert!(program.len() >= STEPS);
    let device = Device::flex();
    let executable = Executor::new(&device).unwrap().load(program);
    let run = |input: DynTensor| {
        let context = RunContext::initialization(Seed::new(0));
        executable.run(vec![input], &context).unwrap()
    };
    let matrix = || {
        let value = vec![0.25_f32; SIDE * SIDE];
        DynTensor::from_data(TensorData::new(value, [SIDE, SIDE]), &device)
    };
    // Threads and their buffers are created in the first run.
    drop(run(matrix()));
    let input = matrix();
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let outputs = run(input);
    let more = HEAP.peak_usage().saturating_sub(before);
    drop(outputs);
    let allowed = more_matrices * MIB + MIB / 4;
    assert!(
        more <= allowed,
        "{name}: {more} bytes more, {allowed} allowed"
    );
}

#[test]
fn values_are_freed_or_used_again() {
    // In place: the input itself is modified by every step.
    check("a chain", 0, |x| (0..STEPS).fold(x, |x, _| x.tanh()));
    // The input of a step is read twice, so it is alive during the first half of the step.
    check("a chain of residual steps", 1, |x| {
        (0..STEPS).fold(x, |x, _| x.clone() + x.tanh())
    });
    check("unread values", 1, |x| {
        (0..STEPS).fold(x, |x, _| {
            drop(x.clone().exp());
            x.sin()
        })
    });
}
