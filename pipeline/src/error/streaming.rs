//! Errors of models whose parameters are read when they are needed.

use std::error::Error;

use tinderbox_deferred::{human_bytes, human_bytes_distinct};
use tinderbox_fake::DeviceLabel;

use crate::schedule::StageIndex;

/// The error of a model that can't be streamed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamedError {
    /// The memory limit is too low; nothing was read.
    #[error(
        "a memory limit of {} is too low, the least is {}: stage {stage} needs {} for its parameters and {} for everything \
         else of the pass{}; raise the limit, plan smaller stages (`Plan::streamed`), or use more or smaller micro-batches",
        human_bytes_distinct(*budget_bytes, *least_bytes),
        human_bytes_distinct(*least_bytes, *budget_bytes),
        human_bytes(*parameter_bytes),
        human_bytes(*other_bytes),
        besides(*besides_bytes)
    )]
    Budget {
        /// The limit in bytes.
        budget_bytes: u64,
        /// The least limit that suffices.
        least_bytes: u64,
        /// The stage that needs most.
        stage: StageIndex,
        /// Bytes of its parameters.
        parameter_bytes: u64,
        /// Bytes of values, carried tensors and the batch while it runs.
        other_bytes: u64,
        /// Bytes that the process has beside the pass, and spare ones.
        besides_bytes: u64,
    },
    /// The limit is one of the process, and the parameters are on a device with its own memory.
    #[error(
        "a limit of the process' memory (`MemoryBudget::Bytes`) does not limit the memory of {device}: use \
         `MemoryBudget::Values`, or the default"
    )]
    ProcessBudget {
        /// The device.
        device: DeviceLabel,
    },
    /// The plan has more than one rank.
    #[error(
        "a streamed model runs on one rank, and the plan has {ranks}: create it with `Plan::streamed`"
    )]
    Ranks {
        /// The number of ranks of all replicas.
        ranks: usize,
    },
    /// Nothing says where what is trained is kept.
    #[error(
        "a streamed model is trained with a store for its values: set one (`store`) and an optimizer"
    )]
    NoStore,
    /// Training can't begin with what the store has, or continue from it.
    #[error("training can't continue with the store")]
    Store {
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A step could not be committed. The last committed one is still there.
    #[error(
        "step {step} could not be committed: the last committed step is still there; start again to continue from it"
    )]
    Commit {
        /// The step.
        step: u64,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
}

fn besides(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        bytes => format!(", and the process {} besides", human_bytes(bytes)),
    }
}
