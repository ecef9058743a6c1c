//! The settings of all runs: sizes, and the schedule of the learning rates.

use tinderbox::Pipeline;
use tinderbox_models::language_model::Gpt;
use tinderbox_models::text::TokenBatch;

pub const SAMPLES: usize = 32;
pub const LENGTH: usize = 64;

const PEAK: f64 = 3e-3;
const WARM_UP: u64 = 40;

pub type Lm = Pipeline<Gpt, TokenBatch>;

/// Returns the learning rate of a step: a warm-up, then a decay to a tenth along half a cosine.
pub fn learning_rate(step: u64, steps: u64) -> f64 {
    let warm = (step + 1) as f64 / WARM_UP as f64;
    let done = step as f64 / steps.max(1) as f64;
    PEAK * warm.min(0.1 + 0.45 * (1.0 + (std::f64::consts::PI * done).cos()))
}

/// Returns the description of the learning rates that a checkpoint contains.
pub fn learning_rates(steps: u64) -> String {
    format!("{PEAK:?} after {WARM_UP} steps, then half a cosine to a tenth, in {steps} steps")
}
