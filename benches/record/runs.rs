//! What several runs took.

use std::time::Instant;

/// Times of one thing, done several times.
#[derive(Default)]
pub struct Runs(Vec<f64>);

impl Runs {
    /// Does it once more, and gives its result. Dropping the result is not counted.
    pub fn time<T>(&mut self, run: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = run();
        self.0.push(started.elapsed().as_secs_f64() * 1e3);
        result
    }

    /// The median, in milliseconds.
    pub fn median_ms(&self) -> f64 {
        median(self.0.clone())
    }

    /// The fastest, in milliseconds.
    pub fn least_ms(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// The value in the middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
