//! The partitioners: which stage runs each block, and which rank each stage.
//!
//! All take a [`Work`](crate::Work), a [`Machine`](crate::Machine) and a [`Step`](crate::Step), and give
//! stages numbered along the flow: no value goes from a stage to a lower one. [`partition`] runs any of
//! them by its [`Partitioner`] and predicts the step.
//!
//! | partitioner | makes small | use it for | time | source |
//! |---|---|---|---|---|
//! | [`chain`] | the step of contiguous stages, exactly | models that are a line of blocks, and as the yardstick | blocks² x stages at the most | Alpa (arXiv 2201.12023), PipeDream |
//! | [`acyclic`], bottleneck | the largest stage, then bytes | parallel branches, which can lie side by side | blocks + values per level, and a fixed number of moves | arXiv 1704.00705; Herrmann et al. 2019 |
//! | [`acyclic`], edge cut | bytes between ranks, with stages up to 1.1 times the best | slow links, skips as in a U-Net | the same | the same |
//! | `metis` (a feature) | bytes between parts of equal weight | graphs with little direction, several experts | blocks + values | Karypis and Kumar 1998 |
//! | [`mixed`] | the most loaded rank, with several stages each | few and uneven blocks, ranks of different speeds | blocks x window of the order, and a schedule search per candidate | FTPipe (USENIX ATC 2021) |
//! | `auto` | the step, by the simulator | always, unless planning has to be quick | the sum | |
//!
//! | file | what is in it |
//! |---|---|
//! | `graph` | the work as a graph that is contracted level by level |
//! | `terms` | ranks, links, micro-batches in flight |
//! | `loads` | what stages take, hold and exchange while blocks move |
//! | `refine` | the moves |
//! | `limits` | memory as the simulator counts it |
//! | `quotient` | what stages hand to each other; circles by name |
//! | `reasons` | why a partition was taken |

mod acyclic;
mod auto;
mod chain;
mod graph;
mod limits;
mod loads;
mod metis;
mod mixed;
mod partitioner;
mod quotient;
mod reasons;
mod refine;
mod terms;
#[cfg(test)]
mod tests;

pub use acyclic::{AcyclicObjective, AcyclicOptions, acyclic};
#[doc(hidden)]
pub use chain::cases as chain_cases;
pub use chain::{ChainOptions, Chained, chain};
#[cfg(feature = "metis")]
pub use metis::metis;
pub use metis::{MetisOptions, MetisRepair};
pub use mixed::{MixedOptions, mixed};
pub use partitioner::{Partitioner, Planned, partition};
pub use quotient::Quotient;
