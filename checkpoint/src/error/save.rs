//! Errors of saving a checkpoint.

use std::{io, path::PathBuf};

use tinderbox_fake::Region;

use super::{FormatError, HeaderError, LayoutError, StoreError};
use crate::AttemptId;

/// The reason why a save failed. Unless documented otherwise, nothing was published and earlier checkpoints
/// are unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// An I/O operation failed.
    #[error(transparent)]
    Io(#[from] StoreError),
    /// The step was already published.
    #[error(
        "{path} already exists: another run or process has saved this step; resume the run, save in another directory, or \
         replace the checkpoint (`CheckpointMeta::replace`)"
    )]
    StepExists {
        /// The file or directory.
        path: PathBuf,
    },
    /// A file or device has the name of the step.
    #[error(
        "{path} has the name of a step and is not a directory: move it, so that the step can be saved"
    )]
    NotADirectory {
        /// The file or device.
        path: PathBuf,
    },
    /// The file system can't exchange two directories atomically.
    #[error(
        "{path} already exists, and this store can't replace it atomically: remove it first, or save another step"
    )]
    CantReplace {
        /// The file or directory.
        path: PathBuf,
    },
    /// The run can't be listed.
    #[error("the checkpoints of the run can't be listed")]
    List {
        /// The cause.
        source: Box<super::LoadError>,
    },
    /// The step does not exist.
    #[error("{path} is not a checkpoint with a valid manifest")]
    NoStep {
        /// The file or directory.
        path: PathBuf,
    },
    /// A name belongs neither to a step nor to a checkpoint that was set aside.
    #[error(
        "`{name}` is neither the directory of a step (step-00000100) nor one that was set aside (damaged-00000100)"
    )]
    NotAStep {
        /// The name.
        name: String,
    },
    /// The checkpoint was published, but its name could not be made durable.
    #[error("{path} was published, but may be lost in a power failure")]
    NotDurable {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// This process does not see the attempt to save the step.
    #[error("no attempt to save step {step} in {path} was found within {waited_ms} ms")]
    NoAttempt {
        /// The step.
        step: u64,
        /// The directory of the run.
        path: PathBuf,
        /// Time waited in milliseconds.
        waited_ms: u128,
    },
    /// The coordinator aborted the attempt.
    #[error("attempt {attempt} to save step {step} was aborted: see the error of the coordinator")]
    Aborted {
        /// The step.
        step: u64,
        /// The attempt.
        attempt: AttemptId,
    },
    /// A rank could not write its part.
    #[error("rank {rank} failed: {message}")]
    RankFailed {
        /// The rank.
        rank: u32,
        /// The error message of the rank.
        message: String,
    },
    /// The values of a tensor can't be read.
    #[error("the values of tensor `{tensor}` can't be read")]
    Value {
        /// Name of the tensor.
        tensor: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The state of an optimizer can't be read.
    #[error("the state of the optimizer can't be read from its device")]
    Optimizer {
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A background save could not start.
    #[error("failed to start the thread of a background save")]
    Thread {
        /// The cause.
        source: io::Error,
    },
    /// A save stopped making progress. Its thread continues to run, so the step may still be published.
    #[error(
        "the save of step {step} has written nothing for {waited_ms} ms, after {written} of the {begun} bytes that it \
         has begun: check the store; if it recovers, the step may still be published"
    )]
    Stalled {
        /// The step.
        step: u64,
        /// Time without a write in milliseconds.
        waited_ms: u128,
        /// Number of bytes written.
        written: u64,
        /// Number of bytes of all ranks that have started to write.
        begun: u64,
    },
    /// A background save panicked; nothing was published.
    #[error("the save of step {step} panicked: {message}")]
    Panicked {
        /// The step.
        step: u64,
        /// The panic message.
        message: String,
    },
    /// The rank does not exist.
    #[error("rank {rank} is out of range for world size {world_size}")]
    RankOutOfRange {
        /// The rank.
        rank: u32,
        /// Number of ranks.
        world_size: u32,
    },
    /// The rank already wrote its part.
    #[error("rank {rank} has already written {path}")]
    RankWritten {
        /// The rank.
        rank: u32,
        /// The file or directory.
        path: PathBuf,
    },
    /// The dtype of a tensor is not supported in a file.
    #[error("tensor `{tensor}` has dtype {found}, which can't be stored: cast it first")]
    UnsupportedDType {
        /// Name of the tensor.
        tensor: String,
        /// The actual value.
        found: String,
    },
    /// The shape of a tensor's data does not match its region.
    #[error("tensor `{tensor}` has data of shape {found:?} for region {expected}")]
    DataShape {
        /// Name of the tensor.
        tensor: String,
        /// The expected value.
        expected: Region,
        /// The actual value.
        found: Vec<u64>,
    },
    /// The chunks of a tensor do not tile it.
    #[error("a chunk of tensor `{tensor}` can't be saved")]
    Layout {
        /// Name of the tensor.
        tensor: String,
        /// The cause.
        source: LayoutError,
    },
    /// The name of a tensor or a scalar is invalid.
    #[error("tensor `{tensor}` can't be saved")]
    Name {
        /// Name of the tensor.
        tensor: String,
        /// The cause.
        source: FormatError,
    },
    /// The header of a file would be invalid.
    #[error("the header of {file} can't be written")]
    Header {
        /// Name of the file.
        file: String,
        /// The cause.
        source: HeaderError,
    },
    /// The manifest would exceed its size limit.
    #[error(
        "{tensors} tensors in {chunks} chunks, with a digest for each {block_bytes} bytes, need a manifest of {expected_bytes} \
         bytes, and the limit is {limit_bytes}: use larger blocks, or cut tensors into fewer chunks"
    )]
    ManifestSize {
        /// Estimated size of the manifest.
        expected_bytes: u64,
        /// Maximum size of the manifest.
        limit_bytes: u64,
        /// Number of tensors.
        tensors: u64,
        /// Number of their chunks.
        chunks: u64,
        /// Number of bytes that one digest covers.
        block_bytes: u64,
    },
    /// The metadata, the plan or the manifest can't be written.
    #[error("the metadata of the attempt can't be written")]
    Meta(#[from] FormatError),
    /// Some ranks did not write their part, and no rank is making progress.
    #[error(
        "rank(s) {ranks:?} wrote no part, and nothing was written for {waited_ms} ms: check their errors, or use a longer \
         timeout"
    )]
    MissingRanks {
        /// The missing ranks.
        ranks: Vec<u32>,
        /// Time in milliseconds during which no file of the attempt changed.
        waited_ms: u128,
    },
    /// The part of a rank is damaged.
    #[error("{path} can't be used")]
    Part {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: FormatError,
    },
    /// A part belongs to another rank or attempt than its path specifies.
    #[error(
        "{path} is the part of rank {} of attempt {}, and its path specifies rank {} of attempt {}",
        found.0, found.1, expected.0, expected.1
    )]
    WrongPart {
        /// The file.
        path: PathBuf,
        /// The rank and the attempt of the path.
        expected: (u32, AttemptId),
        /// The rank and the attempt of the contents.
        found: (u32, AttemptId),
    },
    /// A part lists a file of another rank.
    #[error("{path} lists file {file}, which does not belong to rank {rank}")]
    ForeignFile {
        /// The file or directory.
        path: PathBuf,
        /// The rank.
        rank: u32,
        /// Name of the file.
        file: String,
    },
    /// The size of a file differs from the size that its rank wrote.
    #[error(
        "{path} has {found_bytes} bytes instead of the {expected_bytes} that rank {rank} wrote"
    )]
    FileSize {
        /// The file or directory.
        path: PathBuf,
        /// The rank.
        rank: u32,
        /// Expected number of bytes.
        expected_bytes: u64,
        /// Actual number of bytes.
        found_bytes: u64,
    },
    /// Two ranks saved the same elements.
    #[error(
        "elements {region} of tensor `{tensor}` are saved by rank {first_rank} and by rank {second_rank}: save each once"
    )]
    SavedTwice {
        /// Name of the tensor.
        tensor: String,
        /// The elements.
        region: Region,
        /// The first rank.
        first_rank: u32,
        /// The second rank.
        second_rank: u32,
    },
    /// Two ranks saved the same scalar.
    #[error(
        "scalar `{scalar}` is saved by rank {first_rank} and by rank {second_rank}: save it once"
    )]
    ScalarTwice {
        /// Name of the scalar.
        scalar: String,
        /// The first rank.
        first_rank: u32,
        /// The second rank.
        second_rank: u32,
    },
    /// Two ranks disagree on the dtype, the shape or the tied names of a tensor.
    #[error("rank {rank} saves tensor `{tensor}` as {found}, another rank as {expected}")]
    Disagree {
        /// Name of the tensor.
        tensor: String,
        /// The rank.
        rank: u32,
        /// The dtype, shape and tied names that another rank saves.
        expected: String,
        /// The dtype, shape and tied names that this rank saves.
        found: String,
    },
}
