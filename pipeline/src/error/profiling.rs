//! What can be wrong with a profile.

use std::path::PathBuf;

use burn_backend::ExecutionError;
use tinderbox_deferred::ProgramError;

use crate::PlanError;

/// Why a model could not be measured, or a profile not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The graph can't be cut into blocks.
    #[error("the model can't be cut into blocks")]
    Plan(#[from] PlanError),
    /// A program fails on the device.
    #[error("a block can't be run")]
    Program(#[from] ProgramError),
    /// The device fails.
    #[error("the device failed while a block ran")]
    Device(#[from] ExecutionError),
    /// An operation panicked.
    #[error(
        "an operation panicked on made-up values: where a model is profiled, raise the depth to find which"
    )]
    Panicked,
    /// The threads of a rank could not be started.
    #[error("the threads of a rank could not be started")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    /// A thread of a rank could not be started.
    #[error("a thread of a rank could not be started: measure with fewer ranks beside each other")]
    Spawn {
        /// Why.
        source: std::io::Error,
    },
    /// The profile was taken of another program.
    #[error(
        "the profile was taken of a program with digest {expected}, this one has {found}: measure again"
    )]
    OtherProgram {
        /// Digest in the profile.
        expected: String,
        /// Digest of the program.
        found: String,
    },
    /// The profile has other blocks.
    #[error("the profile has {expected} blocks, the model has {found}: measure again")]
    OtherBlocks {
        /// Blocks of the profile.
        expected: usize,
        /// Blocks of the model.
        found: usize,
    },
    /// The file can't be read or written.
    #[error("the profile {} can't be {action}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// The text is not a profile.
    #[error("this is not a profile")]
    Json(#[source] serde_json::Error),
    /// The profile has another version.
    #[error("the profile has version {found}, this build reads {expected}: measure again")]
    Version {
        /// What this build reads.
        expected: u32,
        /// The version of the file.
        found: u32,
    },
}
