//! Errors of profiles, and of measuring a machine.

use std::path::PathBuf;

use tinderbox_deferred::ProgramError;
use tinderbox_fake::{ExecutionError, FakeError};
use tinderbox_planner::MachineError;
use tinderbox_world::WorldError;

use crate::{PipelineError, PlanError};

/// The error of measuring a model, or of using a profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The graph can't be cut into blocks.
    #[error("the model can't be cut into blocks")]
    Plan(#[from] PlanError),
    /// A program failed on the device.
    #[error("a block can't be run")]
    Program(#[from] ProgramError),
    /// The device failed.
    #[error("the device failed while a block ran")]
    Device(#[from] ExecutionError),
    /// The parameters of a block could not be copied.
    #[error("the parameters of a block could not be copied")]
    Copy(#[from] FakeError),
    /// An operation panicked.
    #[error("an operation panicked on generated values: profile with a larger depth to find it")]
    Panicked,
    /// A thread of a rank could not be started.
    #[error("a thread of a rank could not be started: measure with fewer ranks at once")]
    Spawn {
        /// The cause.
        source: std::io::Error,
    },
    /// The profile is of another program or has other blocks.
    #[error("the profile is of another program or of other blocks: measure again")]
    OtherProgram,
    /// The file could not be read or written.
    #[error("the profile {} can't be {action}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation that failed: `read` or `written`.
        action: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The text is not a profile.
    #[error("the file is not a profile")]
    Json(#[source] serde_json::Error),
    /// The profile has another version.
    #[error(
        "the profile has version {found}, but this build reads version {expected}: measure again"
    )]
    Version {
        /// The version that this build reads.
        expected: u32,
        /// The version of the file.
        found: u32,
    },
}

/// The error of measuring a machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// There are no ranks.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// An operation could not be timed.
    #[error(transparent)]
    Operation(#[from] ProfileError),
    /// The timed pipeline failed.
    #[error("the timed pipeline failed")]
    Pipeline(#[from] PipelineError),
    /// Another process can't continue.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The other end of a link does not answer.
    #[error("the process at the other end of a link does not answer: look at its own error")]
    Silent,
}
