//! What a pipeline gains over plain Burn, and what its parts cost.
//!
//! `cargo bench --bench schedule` prints one figure to a line. What is compared takes turns in one run: a
//! ratio is the median of the ratios of neighbours in time, since the speed of a shared machine drifts. The model, its batch and the number of threads are those
//! that other pipelines were measured with: 8 layers of 1024-wide linear + GELU, 256 samples in 8
//! micro-batches, two ranks with one thread each. What is timed is a whole training step: every
//! micro-batch forward and backward, the sum of the gradients, and the optimizer.

mod cases;
mod data;
mod overhead;
mod prediction;
mod training;

fn main() {
    // Plain Burn gains as well: it holds for the whole process.
    let retained = tinderbox_pages::keep_freed_blocks();
    println!(
        "{} cores; medians of {} turns; freed memory is {} the process",
        std::thread::available_parallelism().map_or(1, usize::from),
        turns(),
        if retained { "kept in" } else { "given back by" },
    );
    training::figures();
    overhead::figures();
    prediction::figures();
    data::figures();
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
    println!("figure schedule.{name} {value:.4} {unit}");
}

/// The middle of some values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
