//! Speedup of a pipeline over plain Burn, and the cost of its parts.
//!
//! `cargo bench --bench schedule` prints one figure per line. The compared operations alternate in one run: a
//! ratio is the median of the ratios of neighbouring measurements, because the speed of a shared machine
//! drifts. The model, its batch and the number of threads are those that other pipelines were measured with:
//! 8 layers of 1024-wide linear + GELU, 256 samples in 8 micro-batches, two ranks with one thread each. A
//! whole training step is timed: forward and backward of every micro-batch, the sum of the gradients, and the
//! optimizer.

mod cases;
mod data;
mod overhead;
mod prediction;
mod training;

fn main() {
    // Applies to the whole process, so plain Burn benefits as well.
    let retained = tinderbox_pages::keep_freed_blocks();
    println!(
        "{} cores; medians of {} turns; freed memory is {} the process",
        std::thread::available_parallelism().map_or(1, usize::from),
        turns(),
        if retained { "kept in" } else { "released by" },
    );
    training::figures();
    overhead::figures();
    prediction::figures();
    data::figures();
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
    println!("figure schedule.{name} {value:.4} {unit}");
}

/// Returns the median.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
