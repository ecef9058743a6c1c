//! How fast plans are made, and whether they hold.
//!
//! `cargo bench --bench plan` prints one figure to a line. What is compared takes turns in one run: a
//! ratio is the median of the ratios of neighbours in time, since the speed of a shared machine drifts.
//! Executed plans have two ranks with one thread each; a step is timed whole, from the batch to the
//! updated parameters. `TINDERBOX_BENCH_TURNS` sets how often those that are compared take turns.

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

/// Counts what the process allocates: exact where resident memory comes in pages.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

fn main() {
    let retained = tinderbox_pages::keep_freed_blocks();
    println!(
        "{} cores; medians of {} turns; freed memory is {} the process",
        std::thread::available_parallelism().map_or(1, usize::from),
        turns(),
        if retained { "kept in" } else { "given back by" },
    );
    trace::figures();
    partition::figures();
    execution::figures();
}

/// How often those that are compared take turns: enough for medians that one disturbance does not move,
/// or what `TINDERBOX_BENCH_TURNS` says.
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

/// The middle of some values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
