//! Times of several runs.

use std::time::Instant;

/// Times of one operation, in seconds.
#[derive(Default)]
pub struct Runs(Vec<f64>);

impl Runs {
    /// Runs the operation once and returns its result. Dropping the result is not timed.
    pub fn time<T>(&mut self, run: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = run();
        self.0.push(started.elapsed().as_secs_f64() * 1e3);
        result
    }

    /// Returns the median in milliseconds.
    pub fn median_ms(&self) -> f64 {
        median(self.0.clone())
    }

    /// Returns the minimum in milliseconds.
    pub fn least_ms(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// Returns the median.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
