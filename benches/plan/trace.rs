//! Time and memory of a large model from its constructor to its plan.

use std::time::Instant;

use burn::tensor::{Device, Int, Tensor};
use tinderbox::{Deferred, Machine, Outputs, ScheduleKind, Traceable};
use tinderbox_benches::figures::median;
use tinderbox_graph::certify::{CertifiedStep, certify_lists, certify_programs};
use tinderbox_graph::cut::{Cutting, StagePrograms};
use tinderbox_graph::lists::StepLists;
use tinderbox_graph::plan::layout;
use tinderbox_graph::schedule::Dependencies;
use tinderbox_graph::sum::Groups;
use tinderbox_graph::{Batch, Plan, Trace};
use tinderbox_models::llama::{Llama, LlamaConfig, forward};

use crate::{BENCH, HEAP};

const STAGES: usize = 8;
const MICRO_BATCHES: usize = 32;
/// Of a micro-batch.
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
    // As many micro-batches as stages.
    let [samples, length] = TOKENS;
    let batch = || Tensor::<2, Int>::zeros([STAGES * samples, length], &device);
    let run = move |model: &Llama, (tokens, targets): (Tensor<2, Int>, Tensor<2, Int>)| {
        let logits = forward::logits(&config, model, tokens);
        Outputs::loss(forward::loss(logits, targets))
    };
    let trace = model.trace(&(batch(), batch()), STAGES, run);
    let trace = trace.expect("it is traced");
    let traced = started.elapsed().as_secs_f64();
    let machine = Machine::local(STAGES).expect("there are ranks");
    let plan = trace.plan(&machine).expect("it is planned");
    let seconds = started.elapsed().as_secs_f64();
    let peak = (HEAP.peak_usage() - before) as f64 / MIB;
    let program = trace.example_program().expect("it was traced");
    println!("{plan}");
    println!(
        "llama7b: {} parameters, {} operations, traced in {traced:.3} s",
        model.parameters().elements(),
        program.graph().nodes().len(),
    );
    BENCH.figure("trace_7b_s", seconds, "s");
    BENCH.figure("trace_7b_peak_mib", peak, "MiB");
    let times = (0..BENCH.turns()).map(|_| certification_ms(&trace, &plan));
    BENCH.figure("certify_7b_ms", median(times.collect()), "ms");
}

/// Returns the time to certify the programs and the lists of a training step, without the time to create them.
fn certification_ms<B: Batch>(trace: &Trace<B>, plan: &Plan) -> f64 {
    let layout = layout(plan, trace.parameters()).expect("the plan is of this model");
    let joint = trace.example_program().expect("it was traced");
    let cutting = Cutting::new(&joint, &layout).expect("it was planned");
    let stages = StagePrograms::of_stages(&joint, &cutting, &layout).expect("it was planned");
    let edges = stages.iter().flat_map(|stage| stage.sends.keys().copied());
    let dependencies = Dependencies::new(STAGES, edges, layout.ties()).with_global_norm();
    let compute = ScheduleKind::OneFOneB.generate(STAGES, 1, MICRO_BATCHES);
    let lists = StepLists::new(&compute.expect("it has stages"), &dependencies);
    let lists = lists.expect("the schedule is valid");
    let started = Instant::now();
    let programs = certify_programs(&joint, stages, &layout.ranks).expect("it is certified");
    let certified = certify_lists(&CertifiedStep {
        replicas: vec![(&lists, 0)],
        micro_batches: vec![&programs; MICRO_BATCHES],
        groups: Groups {
            micro_batches: MICRO_BATCHES,
            groups: 1,
        },
        table: joint.table(),
        layout: &layout,
        global_norm: true,
    });
    certified.expect("it is certified");
    1e3 * started.elapsed().as_secs_f64()
}
