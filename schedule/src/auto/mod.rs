//! The scheduler: finds a schedule for what a step costs, under a limit of memory.
//!
//! [`auto`] is a portfolio. It times every named schedule that has the given stage-to-rank map, makes
//! list schedules under some dozens of policies, and improves the best of them all by a local search.
//! So it is never slower than a named schedule that fits.
//!
//! | room | what is in it |
//! |---|---|
//! | `problem` | the inputs as dense arrays; lists without micro-batch numbers |
//! | `evaluate` | the time of such lists, equal to the simulator's to the tick |
//! | `paths` | the longest paths of one micro-batch |
//! | `bound` | a time that no schedule can be below |
//! | `named` | the named schedules, timed |
//! | `greedy` | the list scheduler, which never stalls under a memory limit |
//! | `variants` | the policies that it is tried with |
//! | `search` | small changes along the critical path |
//! | `random` | numbers for the search, the same every time |
//! | `portfolio` | all of it together |
//!
//! The times, bytes and the idea of trying variants of a greedy scheduler are those of the automatic
//! scheduler of Qi et al. (arXiv 2401.10241); lists, bound and search are not.
//!
//! # Invariants
//!
//! - Every stage runs its forwards, its input gradients and its weight gradients each in ascending
//!   micro-batch order, as the sum of gradients asks for. So a list is a sequence of programs without
//!   micro-batches, and every change of it is again of this form.
//! - There is no clock, and random numbers have a fixed seed: the effort is counted in actions timed.

mod bound;
mod error;
mod evaluate;
mod greedy;
mod named;
mod paths;
mod portfolio;
mod problem;
mod random;
mod search;
#[cfg(test)]
mod tests;
mod variants;

pub use error::AutoError;
pub use portfolio::{Auto, AutoOptions, Effort, auto};
