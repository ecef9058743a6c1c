//! The automatic scheduler: finds a schedule for the costs of a step, within a memory limit.
//!
//! [`auto`] times every named schedule that has the given stage-to-rank map, creates
//! list schedules under several dozen policies, and improves the best of all by a local search.
//! It is therefore never slower than a named schedule that fits.
//!
//! | module | contents |
//! |---|---|
//! | `problem` | the inputs as dense arrays; lists without micro-batch numbers |
//! | `evaluate` | the time of such lists, equal to the time of the simulator to the tick |
//! | `paths` | the longest paths of one micro-batch, and a lower bound of the makespan of all schedules |
//! | `greedy` | the list scheduler, which never stalls under a memory limit |
//! | `variants` | the policies of the list scheduler |
//! | `search` | small changes along the critical path |
//! | `portfolio` | the whole search |
//!
//! Times, bytes and the variants of a greedy scheduler are from the automatic
//! scheduler of Qi et al. (arXiv 2401.10241); lists, bound and local search are not.
//!
//! # Invariants
//!
//! - Every stage runs its forwards, its input gradients and its weight gradients each in ascending
//!   micro-batch order, as the order of the gradient sum requires. A list is therefore a sequence of programs without
//!   micro-batches, and every change of a list is again such a sequence.
//! - There is no clock, and random numbers have a fixed seed: the effort is counted in timed actions.

mod evaluate;
mod greedy;
mod paths;
mod portfolio;
mod problem;
mod search;
#[cfg(test)]
mod tests;
mod variants;

pub use portfolio::{Auto, AutoOptions, auto};
