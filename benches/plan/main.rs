//! Speed of planning, and accuracy of plans.
//!
//! `cargo bench --workspace --bench plan` prints one figure per line. The compared operations alternate in one run: a
//! ratio is the median of the ratios of neighbouring measurements, because the speed of a shared machine
//! drifts. Executed plans have two ranks with one thread each; a step is timed completely, from the batch to
//! the updated parameters. `TINDERBOX_BENCH_TURNS` sets the number of rounds.

mod cases;
mod execution;
mod partition;
mod trace;

use peak_alloc::PeakAlloc;
use tinderbox_benches::figures::Bench;

/// Counts the allocations of the process: exact, whereas resident memory has page granularity.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// The name of its figures, and the turns that medians are of.
const BENCH: Bench = Bench {
    name: "plan",
    turns: 11,
};

fn main() {
    let retained = tinderbox_memory::keep_freed_blocks();
    println!(
        "{} cores; medians of {} turns; freed memory is {} the process",
        std::thread::available_parallelism().map_or(1, usize::from),
        BENCH.turns(),
        if retained { "kept in" } else { "released by" },
    );
    trace::figures();
    partition::figures();
    execution::figures();
}
