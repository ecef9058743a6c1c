//! Schedules as data: per rank, the list of actions that one training step runs.
//!
//! A [`Schedule`] is plain data:
//!
//! - A named generator ([`ScheduleKind`]), [`auto`] or a user ([`Schedule::parse`]) writes the compute actions.
//! - [`lower()`] derives the sends, receives, reduces and updates from the plan's [`Dependencies`].
//! - [`verify()`] rejects a list that cannot run, and names the faulty action.
//! - A rank executes its list in order.
//!
//! [`simulate()`] computes the duration and the memory of a list without running it. [`auto`] finds a list for given costs
//! and memory, at least as fast as every named one that fits. [`draw`] draws a step.
//!
//! The crate has no runtime: it uses no thread, clock, file or device, and does not depend on Burn.
//!
//! ```
//! use tinderbox_schedule::{ComputeTimes, Costs, Dependencies, ScheduleKind, simulate};
//!
//! let schedule = ScheduleKind::ZbH1.generate(4, 1, 8)?;
//! let times = ComputeTimes::new(1, 1, 1);
//! let step = simulate(&schedule, &Dependencies::chain(4), &Costs::uniform(4, times))?;
//! // The formula of the paper: (p - 1)(F + I - W).
//! assert_eq!(step.largest_bubble(), 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Text
//!
//! One row per rank, one word per action; the action's own stage is always on the left.
//!
//! | word | action |
//! |---|---|
//! | `2F5`, `2B5`, `2I5`, `2W5` | forward, backward, input gradient, weight gradient of stage 2, micro-batch 5 |
//! | `2F5&1B3` | a forward and a backward that overlap, of two stages of one rank |
//! | `2F5>3F5` | stage 2 sends the output of its forward to the forward of stage 3 |
//! | `3F5<2F5` | stage 3 receives it |
//! | `2R2` | the gradients of stage 2 are complete; with replicas, they are sent; the stage is written twice |
//! | `2S` | with replicas: waits for the gradients of the others, and sums |
//! | `2U` | the optimizer updates the parameters of stage 2 |
//! | `2G` | with replicas: waits for the parameters that the others have updated |
//! | `0U>3U`, `3U<0U` | stage 0 sends the updated values of its tied parameters to their copy on stage 3 |
//! | `0N>1N`, `1N<0N` | the squared norms of stage 0's gradients, sent to the rank whose lowest stage is 1, for a clip |
//! | `-` | the only word of its row: a rank without actions |
//!
//! Text after a `#` is a comment, and blank rows are skipped. [`Schedule::parse`] reads this form and
//! [`Display`](std::fmt::Display) writes it; [`Schedule::parse_csv`] and [`Schedule::to_csv`] are for the
//! CSV files of PyTorch's pipeline schedules, and [`Schedule::parse_any`] detects which of the two a text is.
//!
//! # Modules
//!
//! A module uses only the modules before it in this list. `error` is not in the list: it may name types of any module.
//!
//! ```text
//! arithmetic index link_model task dependencies action lists text lower verify transfers simulate generate auto draw
//! ```
//!
//! # Architecture invariants
//!
//! - The weight gradients of a stage are summed in micro-batch order, so the sum has the same bits under every schedule.
//!   [`verify()`] rejects another order, and [`Schedule::parse_csv`] numbers the micro-batches in the order of the backwards.
//! - A message is identified by its edge and micro-batch, never by its position in a queue.
//! - The links of a pipeline buffer, so a send never blocks. For links whose sends block ([`LinkModel`]), [`lower_over`]
//!   orders sends and receives, and [`verify_over`] finds the deadlocks of any list.
//! - A backward is either one `B` or an `I` and a later `W`, chosen per stage and micro-batch. The edges
//!   of the plan are the same for both ([`Endpoint`]).
//! - Everything here is deterministic, and a value read from a file is untrusted until [`verify()`] has
//!   accepted it: no function panics or allocates more than is proportional to the lists.
//!
//! # Limits
//!
//! - [`verify()`] reports the first fault, not all.
//! - [`auto`] searches for one replica, without what replicas exchange.

mod action;
#[doc(hidden)]
pub mod arithmetic;
mod auto;
mod dependencies;
pub mod draw;
mod error;
mod generate;
mod link_model;
mod lists;
mod lower;
mod simulate;
mod task;
#[cfg(test)]
mod tests;
mod text;
mod transfers;
mod verify;

pub use action::{Action, Message};
pub use auto::{Auto, AutoOptions, auto};
pub use dependencies::{Dependencies, Edge, Endpoint, Tie};
pub use error::{AutoError, VerifyError, Wait};
pub use generate::{ChunkCounts, Placement, ScheduleKind, ScheduleKindError, forward_only_on};
pub use link_model::{LinkModel, LinkModelError};
pub use lists::{Form, Place, Schedule, ScheduleMode};
pub use lower::lower;
pub use simulate::{
    ComputeTimes, Costs, LinkCosts, Network, RankTimeline, Span, StageCosts, TimeUnit, Timeline,
    peak_activations, peak_bytes, simulate,
};
pub use task::{Compute, Task};
#[cfg(test)]
use tests::{forward_only, gpipe, one_f_one_b};
pub use text::{ParseError, TextPosition, WordFault};
pub use tinderbox_ids::{MicroBatchIndex, RankIndex, StageIndex};
pub use transfers::lower_over;
pub use verify::{verify, verify_over};
