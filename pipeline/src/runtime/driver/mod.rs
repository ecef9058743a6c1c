//! The driver of a pipeline, without the types of its model and batches: `command` lists what it does.

mod batches;
mod carry;
mod command;
#[expect(clippy::module_inception, reason = "the folder is of the type")]
mod driver;
mod facts;
mod launch;
mod memory_check;
mod output;
mod parameters;
mod programs;
mod repaired;
mod reports;
mod restore;
mod run_settings;
mod share;
mod state;
mod state_digest;
mod training;
mod weights;

pub(crate) use batches::{Batches, MicroBatch, splits};
pub use carry::Carry;
pub(crate) use command::{CallKind, Command, Reply};
pub(crate) use driver::{Driver, Options};
pub(crate) use launch::{Launch, Prepared, RankOptions};
pub use output::{Evaluation, OutputsOn, StepOutput};
pub use programs::certification_time;
pub(crate) use programs::{Programs, states};
pub use repaired::Repaired;
pub(crate) use run_settings::precision_in_text;
pub(crate) use state::{Condition, DriverState};
pub use state_digest::StateDigest;
pub(crate) use weights::weights;
