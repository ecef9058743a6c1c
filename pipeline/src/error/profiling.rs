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
    Plan {
        /// Why.
        #[from]
        source: PlanError,
    },
    /// A program fails on the device.
    #[error("a block can't be run")]
    Program {
        /// Why.
        #[from]
        source: ProgramError,
    },
    /// The device fails.
    #[error("the device failed while a block ran")]
    Device {
        /// Why.
        #[from]
        source: ExecutionError,
    },
    /// An operation panicked.
    #[error("an operation of a block panicked on made-up values: raise the depth to find which")]
    Panicked,
    /// The threads of a rank could not be started.
    #[error("the threads of a rank could not be started")]
    Threads {
        /// Why.
        #[source]
        source: rayon::ThreadPoolBuildError,
    },
    /// A thread of a rank could not be started.
    #[error("a thread of a rank could not be started: measure with fewer ranks beside each other")]
    Spawn {
        /// Why.
        #[source]
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
        #[source]
        source: std::io::Error,
    },
    /// The text is no profile.
    #[error("this is not a profile")]
    Json {
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// The profile has another version.
    #[error("the profile has version {found}, this build reads {expected}: measure again")]
    Version {
        /// What this build reads.
        expected: u32,
        /// What stands in the file.
        found: u32,
    },
}
