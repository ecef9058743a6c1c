//! What benches measure and print: medians of several turns, a figure on each line. A bench that includes this has its name in
//! `BENCH` and its number of turns in `TURNS`.

/// Returns the number of turns: enough for medians that are robust against one disturbance, or the value of
/// `TINDERBOX_BENCH_TURNS`.
pub fn turns() -> usize {
    let set = std::env::var("TINDERBOX_BENCH_TURNS").ok();
    set.and_then(|turns| turns.parse().ok())
        .unwrap_or(crate::TURNS)
        .max(1)
}

/// Prints a figure.
pub fn figure(name: &str, value: f64, unit: &str) {
    println!("figure {}.{name} {value:.4} {unit}", crate::BENCH);
}

/// Returns the median.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
