//! Speedup of a pipeline over plain Burn, and the cost of its parts.
//!
//! `cargo bench --workspace --bench schedule` prints one figure per line. The compared operations alternate in one run: a
//! ratio is the median of the ratios of neighbouring measurements, because the speed of a shared machine
//! drifts. The model, its batch and the number of threads are those that other pipelines were measured with:
//! 8 layers of 1024-wide linear + GELU, 256 samples in 8 micro-batches, two ranks with one thread each. A
//! whole training step is timed: forward and backward of every micro-batch, the sum of the gradients, and the
//! optimizer.

mod data;
mod overhead;
mod prediction;
mod products;
mod training;

use tinderbox_benches::figures::Bench;

/// The name of its figures, and the turns that medians are of.
const BENCH: Bench = Bench {
    name: "schedule",
    turns: 11,
};

fn main() {
    // Applies to the whole process, so plain Burn benefits as well.
    let retained = tinderbox_memory::keep_freed_blocks();
    println!(
        "{} cores; medians of {} turns; freed memory is {} the process",
        std::thread::available_parallelism().map_or(1, usize::from),
        BENCH.turns(),
        if retained { "kept in" } else { "released by" },
    );
    training::figures();
    overhead::figures();
    products::figures();
    prediction::figures();
    data::figures();
}
