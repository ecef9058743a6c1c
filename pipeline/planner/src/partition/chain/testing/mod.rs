//! Work, machines and an exhaustive search for the best cuts, for unit tests and the bench of plans.

mod large;
mod optimum;
mod small;

pub use large::{Numbers, Times, large_case};
pub use optimum::brute_force;
pub use small::{small_case, small_step};

use super::problem::Problem;
use super::solve::{Chained, POSITIONS};
use crate::{Machine, PlannerError, Step, Work};

/// Finds the same cuts as [`chain`](super::chain), by the cost model alone: two waiting messages are counted at each end of a
/// stage, also if the schedule holds more.
pub(super) fn chain_by_model(
    work: &Work,
    machine: &Machine,
    step: &Step,
    most_positions: usize,
) -> Result<Chained, PlannerError> {
    Problem::new(work, machine, step, most_positions)?.solve(false)
}

/// Returns the time in nanoseconds of the stages of [`chain`](super::chain) by its model; `None` where none fits.
pub fn chain_ns(work: &Work, machine: &Machine, step: &Step) -> Option<u64> {
    let found = chain_by_model(work, machine, step, POSITIONS).ok()?;
    Some(found.model_ns)
}
