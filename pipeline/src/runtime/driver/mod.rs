//! The driver of a pipeline, without the types of its model and batches: `command` lists what it does.

mod batches;
mod carry;
mod command;
mod damage;
#[expect(clippy::module_inception, reason = "the folder is of the type")]
mod driver;
mod facts;
mod launch;
mod options;
mod output;
mod parameters;
mod programs;
mod state_digest;
mod training;

pub(crate) use batches::{Batches, MicroBatch, split_and_run, weights};
pub use carry::Carry;
pub(crate) use command::{CallKind, Command, Reply};
pub use driver::Repaired;
pub(crate) use driver::{Condition, Driver, DriverState};
pub(crate) use facts::precision_in_text;
pub(crate) use launch::{Launch, RankKind};
pub(crate) use options::Options;
pub use options::OutputsOn;
pub use output::{Evaluation, Recovered, StepOutput};
pub use programs::certification_time;
pub(crate) use programs::{Programs, states};
pub use state_digest::StateDigest;
