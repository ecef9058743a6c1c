//! Time and memory of a large model from its constructor to its plan.

use std::time::Instant;

use burn::tensor::{Device, Int, Tensor};
use tinderbox::{Deferred, Machine, Outputs, Plan, ScheduleKind, Traceable};
use tinderbox_pipeline::certification_time;

use crate::llama::{Llama, LlamaConfig};
use crate::{HEAP, figure, forward, median, turns};

const STAGES: usize = 8;
const MICRO_BATCHES: usize = 32;
const TOKENS: [usize; 2] = [1, 2048];
const MIB: f64 = (1 << 20) as f64;

/// Prints the cost of a training graph of the size of Llama 2 with 7 billion parameters, in eight stages: the
/// total time from the constructor to the plan with the text of its programs, and the time to certify its
/// programs and lists before a step.
pub fn figures() {
    let config = LlamaConfig {
        kv_heads: 32,
        feed_forward: 11008,
        vocabulary: 32_000,
        context: 4096,
        ..LlamaConfig::llama_3_8b()
    };
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let started = Instant::now();
    let constructed = config.clone();
    let model = Deferred::new(move |device| constructed.init(device)).expect("it is recorded");
    let device = Device::flex();
    let batch = || Tensor::<2, Int>::zeros(TOKENS, &device);
    let run = move |model: &Llama, (tokens, targets): (Tensor<2, Int>, Tensor<2, Int>)| {
        let logits = forward::logits(&config, model, tokens);
        Outputs::loss(forward::loss(logits, targets))
    };
    let trace = model.trace(&(batch(), batch()), run).expect("it is traced");
    let traced = started.elapsed().as_secs_f64();
    let machine = Machine::local(STAGES).expect("there are ranks");
    let plan = Plan::auto(&trace, &machine).expect("it is planned");
    let seconds = started.elapsed().as_secs_f64();
    let peak = (HEAP.peak_usage() - before) as f64 / MIB;
    let program = trace.example_program().expect("it was traced");
    println!("{plan}");
    println!(
        "llama7b: {} parameters, {} operations, traced in {traced:.3} s",
        model.parameters().elements(),
        program.graph().nodes().len(),
    );
    figure("trace_7b_s", seconds, "s");
    figure("trace_7b_peak_mib", peak, "MiB");
    let times = (0..turns()).map(|_| {
        let time = certification_time(&trace, &plan, ScheduleKind::OneFOneB, MICRO_BATCHES);
        1e3 * time.expect("it is certified").as_secs_f64()
    });
    figure("certify_7b_ms", median(times.collect()), "ms");
}
