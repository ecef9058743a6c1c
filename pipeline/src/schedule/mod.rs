//! Schedules as data: per rank, the list of actions that one training step runs.
//!
//! A [`Schedule`] is a value. A generator ([`gpipe`], [`one_f_one_b`], [`forward_only`]) or a user
//! ([`Schedule::parse`]) writes the compute actions; [`lower`] derives the sends, receives, reduces
//! and updates from the plan's [`Dependencies`]; [`verify`] refuses a list that cannot run and names
//! the action at fault; a rank then executes its list in order. [`peak_activations`] and [`bubble`]
//! measure a list without running it.
//!
//! It is not a runtime and not a cost model: there is no thread, clock, file or device here, and the
//! times of [`bubble`] are ticks, the same for every stage.
//!
//! # Text
//!
//! One row per rank, one word per action; the action's own stage always stands on the left.
//!
//! | word | action |
//! |---|---|
//! | `2F5`, `2B5`, `2I5`, `2W5` | forward, backward, input gradient, weight gradient of stage 2, micro-batch 5 |
//! | `2F5>3F5` | stage 2 sends what its forward made for the forward of stage 3 |
//! | `3F5<2F5` | stage 3 receives it |
//! | `2R2` | the gradients of stage 2 are summed over group 2 |
//! | `2U` | the optimizer updates the parameters of stage 2 |
//! | `0U>3U`, `3U<0U` | stage 0 sends the updated values of its tied parameters to their replica on stage 3 |
//!
//! # Architecture invariants
//!
//! - The weight gradients of a stage are added up in micro-batch order, whatever the schedule, so the
//!   sum has the same bits under every schedule. [`verify`] refuses another order.
//! - A message is named by its edge and micro-batch and matched by that name, never by its place in
//!   a queue. Links buffer, so a send never waits.
//! - A backward is either one `B` or an `I` and a later `W`, chosen per stage and micro-batch. Edges
//!   of the plan are written once, for both ([`Endpoint`]).
//! - Everything here is deterministic, and a value read from a file is untrusted until [`verify`] has
//!   accepted it: no function panics or allocates more than the lists justify.

mod action;
mod dependencies;
mod error;
mod generate;
mod index;
mod lists;
mod lower;
mod measure;
mod symbolic;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod verify;

pub use action::{Action, Compute, Message, Task};
pub use dependencies::{Dependencies, Edge, Endpoint, Tie};
pub use error::{ParseError, Place, Rule, VerifyError, Wait};
pub use generate::{forward_only, gpipe, one_f_one_b};
pub use index::{GroupIndex, MicroBatchIndex, RankIndex, StageIndex};
pub use lists::{Form, Mode, Schedule};
pub use lower::lower;
pub use measure::{Bubble, ComputeTimes, bubble, peak_activations};
pub use verify::verify;
