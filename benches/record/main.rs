//! Cost of constructing models as fake tensors and tracing them.
//!
//! `cargo bench --workspace --bench record` prints one figure per line. Every measurement is compared with a bare capture
//! of the same work in the same run: Burn's capture device alone, without code of this project. Figures are
//! medians; the difference to the minimum times shows the noise of the machine.

mod bare;
mod runs;

use burn::tensor::{Device, Int, Tensor};
use peak_alloc::PeakAlloc;
use tinderbox::{Deferred, Outputs, Trace, Traceable};
use tinderbox_models::llama::{Llama, LlamaConfig, forward};

use runs::{Runs, median};

/// Counts the allocations of the process: exact, whereas resident memory has page granularity.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const CONSTRUCTIONS: usize = 41;
const TRACES: usize = 11;
const TOKENS: [usize; 2] = [1, 2048];
const MIB: f64 = (1 << 20) as f64;

fn main() {
    construct("llama70b", &LlamaConfig::llama_3_70b());
    construct("llama405b", &LlamaConfig::llama_3_405b());
    trace(&LlamaConfig::llama_3_8b());
}

/// Constructs a model with its table of parameters.
fn construct(name: &str, config: &LlamaConfig) {
    let capture = Device::capture();
    let (mut ours, mut bare, mut mib) = (Runs::default(), Runs::default(), Vec::new());
    let mut described = String::new();
    for _ in 0..CONSTRUCTIONS {
        forget_gradients();
        bare.time(|| bare::capture(&capture, |device| config.init(device), |_, _| {}));
        let config = config.clone();
        let before = HEAP.current_usage();
        HEAP.reset_peak_usage();
        let model = ours.time(|| deferred(config));
        mib.push((HEAP.peak_usage() - before) as f64 / MIB);
        let table = model.parameters();
        described = format!(
            "{} parameters of {} elements, {:.1} GiB when materialized",
            table.len(),
            table.elements(),
            table.bytes() as f64 / (1u64 << 30) as f64,
        );
    }
    println!("{name}: {described}; medians of {CONSTRUCTIONS} constructions");
    println!("figure record.{name}_ms {:.3} ms", ours.median_ms());
    println!("figure record.{name}_least_ms {:.3} ms", ours.least_ms());
    println!("figure record.{name}_mib {:.3} MiB", median(mib));
    against_bare(name, &ours, &bare);
}

/// Traces a model's forward, and its forward with Burn's backward.
fn trace(config: &LlamaConfig) {
    let capture = Device::capture();
    let model = deferred(config.clone());
    let (mut evaluation, mut training, mut bare) =
        (Runs::default(), Runs::default(), Runs::default());
    let [mut operations, mut joint, mut captured] = [0; 3];
    for _ in 0..TRACES {
        forget_gradients();
        captured = bare.time(|| {
            let init = |device: &Device| config.init(device);
            bare::capture(&capture, init, |device, model| {
                let tokens = Tensor::<2, Int>::zeros(TOKENS, device);
                drop(forward::logits(config, model, tokens));
            })
        });
        operations = count(&evaluation.time(|| traced(&model, config, false)));
        joint = count(&training.time(|| traced(&model, config, true)));
    }
    let per_operation = |ms: f64, operations: usize| 1e3 * ms / operations as f64;
    println!(
        "llama8b: {} layers, {operations} operations forward ({captured} in the bare capture), \
         {joint} with the backward, both with the initialization; medians of {TRACES} traces",
        config.layers
    );
    for (name, runs, operations) in [
        ("forward", &evaluation, operations),
        ("joint", &training, joint),
        ("bare_forward", &bare, captured),
    ] {
        let us = per_operation(runs.median_ms(), operations);
        println!("figure record.{name}_op_us {us:.3} us");
        let us = per_operation(runs.least_ms(), operations);
        println!("figure record.{name}_op_least_us {us:.3} us");
    }
    against_bare("forward", &evaluation, &bare);
}

/// Resets Burn's autodiff before each run: it keeps an entry for every tensor that ever required a gradient
/// until the next backward pass.
fn forget_gradients() {
    let one = Tensor::<1>::ones([1], &Device::flex().autodiff()).require_grad();
    drop(one.backward());
}

fn against_bare(name: &str, ours: &Runs, bare: &Runs) {
    println!("figure record.{name}_bare_ms {:.3} ms", bare.median_ms());
    let ratio = ours.median_ms() / bare.median_ms();
    println!("figure record.{name}_vs_bare {ratio:.2} ratio");
}

fn deferred(config: LlamaConfig) -> Deferred<Llama> {
    Deferred::new(move |device| config.init(device)).expect("it is recorded")
}

type Batch = (Tensor<2, Int>, Tensor<2, Int>);

fn traced(model: &Deferred<Llama>, config: &LlamaConfig, training: bool) -> Trace<Batch> {
    let device = Device::flex();
    let batch = || Tensor::<2, Int>::zeros(TOKENS, &device);
    let config = config.clone();
    let run = move |model: &Llama, (tokens, targets): Batch| {
        let logits = forward::logits(&config, model, tokens);
        match training {
            true => Outputs::loss(forward::loss(logits, targets)),
            false => Outputs::none().with("logits", logits),
        }
    };
    let example = (batch(), batch());
    match training {
        true => model.trace(&example, 1, run),
        false => model.trace_forward(&example, run),
    }
    .expect("it is traced")
}

fn count(trace: &Trace<Batch>) -> usize {
    let program = trace.example_program().expect("it was traced");
    program.graph().nodes().len()
}
