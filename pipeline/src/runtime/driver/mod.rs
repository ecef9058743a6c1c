//! The driver of a pipeline, without the types of its model and batches. `command` lists its calls.

mod batches;
mod carry;
mod command;
mod damage;
#[expect(clippy::module_inception, reason = "the folder is of the type")]
mod driver;
mod facts;
mod launch;
mod output;
mod parameters;
mod programs;
mod state_digest;
mod training;

pub(crate) use batches::{Batches, MicroBatch, split_and_run, weights};
pub use carry::Carry;
pub(crate) use command::{CallKind, Command, NamedValues, Reply};
pub use driver::Repaired;
pub(crate) use driver::{Condition, Driver, DriverState};
pub(crate) use facts::precision_in_text;
pub(crate) use launch::{Launch, RankKind};
pub use output::{Evaluation, Recovered, StepOutput};
pub(crate) use programs::{Programs, states};
pub use state_digest::StateDigest;
