//! Speed of planning, and accuracy of plans.
//!
//! `cargo bench --bench plan` prints one figure per line. The compared operations alternate in one run: a
//! ratio is the median of the ratios of neighbouring measurements, because the speed of a shared machine
//! drifts. Executed plans have two ranks with one thread each; a step is timed completely, from the batch to
//! the updated parameters. `TINDERBOX_BENCH_TURNS` sets the number of rounds.

mod cases;
mod execution;
#[path = "../record/forward.rs"]
mod forward;
#[path = "../../examples/train_lm/model.rs"]
mod gpt;
#[path = "../../examples/summary/llama.rs"]
#[allow(dead_code, reason = "the sizes of other models")]
mod llama;
mod partition;
mod trace;

use peak_alloc::PeakAlloc;

/// Counts the allocations of the process: exact, whereas resident memory has page granularity.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

fn main() {
    let retained = tinderbox_pages::keep_freed_blocks();
    println!(
        "{} cores; medians of {} turns; freed memory is {} the process",
        std::thread::available_parallelism().map_or(1, usize::from),
        turns(),
        if retained { "kept in" } else { "released by" },
    );
    trace::figures();
    partition::figures();
    execution::figures();
}

/// Returns the number of rounds: enough for medians that are robust against one disturbance, or the value of
/// `TINDERBOX_BENCH_TURNS`.
fn turns() -> usize {
    const TURNS: usize = 11;
    let set = std::env::var("TINDERBOX_BENCH_TURNS").ok();
    set.and_then(|turns| turns.parse().ok())
        .unwrap_or(TURNS)
        .max(1)
}

/// Prints a figure.
fn figure(name: &str, value: f64, unit: &str) {
    println!("figure plan.{name} {value:.4} {unit}");
}

/// Returns the median.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
