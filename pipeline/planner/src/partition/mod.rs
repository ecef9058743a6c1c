//! The partitioners, which assign blocks to stages and stages to ranks.
//!
//! The inputs of all partitioners are a [`Work`](crate::Work), a [`Machine`](crate::Machine) and a
//! [`Step`](crate::Step). Their stages are numbered along the flow: no value flows from a stage to a
//! lower one. [`partition`] runs a [`Partitioner`] and predicts the step.
//!
//! | partitioner | minimizes | use it for |
//! |---|---|---|
//! | [`chain`] | the step of contiguous stages, by a cost model | models that are a line of blocks |
//! | `mixed` | the time of the slowest rank, with several stages per rank | few and uneven blocks, branches, uneven ranks |
//! | `metis` (a feature) | bytes between parts of equal weight | graphs with little direction, several experts |
//! | `auto` | the step, by the simulator | everything, unless planning must be fast |
//! | [`fine`] | nothing: many small stages on one rank | models that are streamed |
//!
//! | partitioner | time | source |
//! |---|---|---|
//! | [`chain`] | stages x 512² per limit | Alpa (arXiv 2201.12023), PipeDream |
//! | `mixed` | blocks x window of the order, and a schedule search per candidate | FTPipe (USENIX ATC 2021) |
//! | `metis` | blocks + values | Karypis and Kumar 1998 |
//! | `auto` | the sum of all | |
//! | [`fine`] | linear | |
//!
//! | file | contents |
//! |---|---|
//! | `flight` | micro-batches in flight on each stage |
//! | `graph` | the work as a contractible graph |
//! | `terms` | stages on ranks, and links |
//! | `loads` | times, memory and messages of stages while blocks move |
//! | `refine` | moves of blocks between stages |
//! | `limits` | memory as the simulator counts it |
//! | `reasons` | why a partition was chosen |

mod chain;
mod fine;
mod flight;
mod graph;
mod limits;
mod loads;
#[cfg(feature = "metis")]
mod metis;
mod mixed;
mod partitioner;
mod reasons;
mod refine;
mod run;
mod terms;
#[cfg(test)]
mod tests;

pub use chain::{Chained, chain, chain_by_model};
pub use fine::fine;
pub use partitioner::{Choice, Partitioner, Planned};
pub use run::partition;
