//! What benches measure and print: medians of several turns, a figure on each line.

/// A bench.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// The first part of the name of each figure.
    pub name: &'static str,
    /// The turns that medians are of.
    pub turns: usize,
}

impl Bench {
    /// Returns the number of turns: enough for medians that are robust against one disturbance, or the value of
    /// `TINDERBOX_BENCH_TURNS`.
    pub fn turns(self) -> usize {
        let set = std::env::var("TINDERBOX_BENCH_TURNS").ok();
        set.and_then(|turns| turns.parse().ok())
            .unwrap_or(self.turns)
            .max(1)
    }

    /// Prints a figure.
    pub fn figure(self, name: &str, value: f64, unit: &str) {
        println!("figure {}.{name} {value:.4} {unit}", self.name);
    }
}

/// Returns the median.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
