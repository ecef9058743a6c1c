//! References for the tests of the planner and of schedules, and for their benches.
//!
//! - [`brute_force`] is an exhaustive search for the best cuts. Its time by the cost model is compared with the time of
//!   `chain`.
//! - [`large_case`], [`small_case`] and [`small_step`] are the works, machines and steps that are cut.
//! - [`settings()`] are two hundred steps to schedule. The scheduler is compared with the named schedules that fit.

mod numbers;
mod optimum;
mod settings;
mod works;

pub use numbers::Numbers;
pub use optimum::brute_force;
pub use settings::{Setting, settings};
pub use works::{Times, block, large_case, small_case, small_step};
