//! Speed of planning, and accuracy of plans.
//!
//! `cargo bench --bench plan` prints one figure per line. The compared operations alternate in one run: a
//! ratio is the median of the ratios of neighbouring measurements, because the speed of a shared machine
//! drifts. Executed plans have two ranks with one thread each; a step is timed completely, from the batch to
//! the updated parameters. `TINDERBOX_BENCH_TURNS` sets the number of rounds.

mod cases;
mod execution;
#[path = "../support/figures.rs"]
mod figures;
#[path = "../record/forward.rs"]
mod forward;
#[path = "../../examples/train_lm/model.rs"]
mod gpt;
#[path = "../../examples/summary/llama.rs"]
#[allow(dead_code, reason = "the sizes of other models")]
mod llama;
mod partition;
mod trace;

use figures::{figure, median, turns};
use peak_alloc::PeakAlloc;

/// Counts the allocations of the process: exact, whereas resident memory has page granularity.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// The first part of the name of each figure.
const BENCH: &str = "plan";
/// The turns that medians are of.
const TURNS: usize = 11;

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
