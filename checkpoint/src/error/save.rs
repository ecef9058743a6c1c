//! Why a save failed.

use std::{io, path::PathBuf};

use tinderbox_fake::Region;

use super::{FormatError, HeaderError, LayoutError};
use crate::{AttemptId, StoredDType};

/// Why a save failed. Nothing was published, and earlier checkpoints are as they were.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The file system failed.
    #[error("can't {action} {}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The step was published before.
    #[error("{} is there already: ask for it to be replaced, or save another step", .path.display())]
    StepExists {
        /// The file or directory.
        path: PathBuf,
    },
    /// The file system can't exchange two directories in one instant.
    #[error("{} is there already, and this store can't replace it in one instant: remove it first, or save another step", .path.display())]
    CantReplace {
        /// The file or directory.
        path: PathBuf,
    },
    /// The run can't be listed.
    #[error("the checkpoints of the run can't be listed")]
    List {
        /// What went wrong.
        source: Box<super::LoadError>,
    },
    /// The step is not there.
    #[error("{} is no checkpoint with a sound manifest", .path.display())]
    NoStep {
        /// The file or directory.
        path: PathBuf,
    },
    /// A name is neither that of a step nor that of one which was set aside.
    #[error(
        "`{name}` is not the directory of a step (step-00000100) or of one that was set aside (damaged-00000100)"
    )]
    NotAStep {
        /// The name.
        name: String,
    },
    /// The checkpoint was published, and its name could not be made durable.
    #[error("{} was published, but may be gone after a loss of power", .path.display())]
    NotDurable {
        /// The file or directory.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// There is no living attempt to save the step.
    #[error("nobody has begun to save step {step} in {} after {waited_ms} ms", .path.display())]
    NoAttempt {
        /// The step.
        step: u64,
        /// The directory of the run.
        path: PathBuf,
        /// Milliseconds that were waited.
        waited_ms: u128,
    },
    /// There are several.
    #[error(
        "{} attempts to save step {step} are alive, or can't be told from the dead: {}; when nobody saves, \
         `Run::clean_when_idle` removes them",
        .attempts.len(),
        names(.attempts)
    )]
    SeveralAttempts {
        /// The step.
        step: u64,
        /// The attempts.
        attempts: Vec<AttemptId>,
    },
    /// The coordinator has given the attempt up.
    #[error("attempt {attempt} to save step {step} was given up: look at the coordinator's error")]
    GivenUp {
        /// The step.
        step: u64,
        /// The attempt.
        attempt: AttemptId,
    },
    /// The coordinator has not published the attempt in time.
    #[error("attempt {attempt} to save step {step} was not published after {waited_ms} ms")]
    NotPublished {
        /// The step.
        step: u64,
        /// The attempt.
        attempt: AttemptId,
        /// Milliseconds that were waited.
        waited_ms: u128,
    },
    /// A rank could not write its part.
    #[error("rank {rank} failed: {message}")]
    RankFailed {
        /// The rank.
        rank: u32,
        /// What it said.
        message: String,
    },
    /// The values of a tensor can't be had.
    #[error("the values of tensor `{tensor}` can't be read")]
    Value {
        /// Name of the tensor.
        tensor: String,
        /// What went wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The state of an optimizer can't be had.
    #[error("the state of the optimizer can't be read from its device")]
    Optimizer {
        /// What went wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A save in the background could not begin.
    #[error("no thread for a save in the background")]
    Thread {
        /// What went wrong.
        source: io::Error,
    },
    /// A save has stopped writing. Its thread goes on by itself, so the step may still be published.
    #[error(
        "the save of step {step} has written nothing for {waited_ms} ms, after {written} of the {begun} bytes that it \
         has begun: look at the store; should it answer, the step may still be published"
    )]
    Stalled {
        /// The step.
        step: u64,
        /// Milliseconds without a byte.
        waited_ms: u128,
        /// Bytes that are written.
        written: u64,
        /// Bytes of all ranks whose turn has come.
        begun: u64,
    },
    /// A save in the background panicked; nothing was published.
    #[error("the save of step {step} panicked: {message}")]
    Panicked {
        /// The step.
        step: u64,
        /// The panic's message.
        message: String,
    },
    /// Two ranks give one tensor other tied names.
    #[error(
        "rank {rank} says that tensor `{tensor}` is also called {found:?}, another says {expected:?}"
    )]
    TiedNames {
        /// Name of the tensor.
        tensor: String,
        /// The rank.
        rank: u32,
        /// What should be there.
        expected: Vec<String>,
        /// What was found.
        found: Vec<String>,
    },
    /// There is no such rank.
    #[error("rank {rank} of a world of {world_size}")]
    RankOutOfRange {
        /// The rank.
        rank: u32,
        /// Number of ranks.
        world_size: u32,
    },
    /// The rank wrote its part before.
    #[error("rank {rank} has written {} already", .path.display())]
    RankWritten {
        /// The rank.
        rank: u32,
        /// The file or directory.
        path: PathBuf,
    },
    /// Tensors of this dtype have no form in a file.
    #[error("tensor `{tensor}` has dtype {found}, which has no form in a file: cast it first")]
    UnsupportedDType {
        /// Name of the tensor.
        tensor: String,
        /// What was found.
        found: String,
    },
    /// The data of a tensor are not of the size of its region.
    #[error("tensor `{tensor}` has data of shape {found:?} for region {expected}")]
    DataShape {
        /// Name of the tensor.
        tensor: String,
        /// What should be there.
        expected: Region,
        /// What was found.
        found: Vec<u64>,
    },
    /// The chunks of a tensor are not the whole of it.
    #[error("a chunk of tensor `{tensor}` can't be saved")]
    Layout {
        /// Name of the tensor.
        tensor: String,
        /// What went wrong.
        source: LayoutError,
    },
    /// A tensor or a scalar has a name that can't be used.
    #[error("tensor `{tensor}` can't be saved")]
    Name {
        /// Name of the tensor.
        tensor: String,
        /// What went wrong.
        source: FormatError,
    },
    /// The header of a file would not be valid.
    #[error("the header of {file} can't be written")]
    Header {
        /// Name of the file.
        file: String,
        /// What went wrong.
        source: HeaderError,
    },
    /// No manifest has room for what is to be saved.
    #[error(
        "{tensors} tensors in {chunks} chunks, with a digest for each {block_bytes} bytes, need a manifest of {expected_bytes} bytes, and the limit is {limit_bytes}: use larger blocks, or cut tensors into fewer chunks"
    )]
    ManifestSize {
        /// Bytes that it would take.
        expected_bytes: u64,
        /// Bytes that are allowed.
        limit_bytes: u64,
        /// Number of tensors.
        tensors: u64,
        /// Number of their chunks.
        chunks: u64,
        /// Bytes that one digest covers.
        block_bytes: u64,
    },
    /// The metadata of the step, its plan or its manifest can't be written.
    #[error("the attempt can't be described")]
    Meta(#[from] FormatError),
    /// Some ranks did not write their part, and nobody wrote any more.
    #[error(
        "no part of rank(s) {ranks:?}, and nothing was written for {waited_ms} ms: look at their errors, or wait longer"
    )]
    MissingRanks {
        /// Which ranks.
        ranks: Vec<u32>,
        /// Milliseconds in which no file of the attempt has changed.
        waited_ms: u128,
    },
    /// The part of a rank is damaged.
    #[error("{} can't be used", .path.display())]
    Part {
        /// The file or directory.
        path: PathBuf,
        /// What went wrong.
        source: FormatError,
    },
    /// A part is of another attempt.
    #[error("{} is of attempt {found} instead of {expected}: a rank wrote into the wrong attempt", .path.display())]
    WrongAttempt {
        /// The file or directory.
        path: PathBuf,
        /// What should be there.
        expected: AttemptId,
        /// What was found.
        found: AttemptId,
    },
    /// A part is of another rank than its name says.
    #[error("{} is of rank {found} instead of {expected}", .path.display())]
    WrongRank {
        /// The file or directory.
        path: PathBuf,
        /// What should be there.
        expected: u32,
        /// What was found.
        found: u32,
    },
    /// A part names a file that is not its rank's.
    #[error("{} names file {file}, which does not belong to rank {rank}", .path.display())]
    ForeignFile {
        /// The file or directory.
        path: PathBuf,
        /// The rank.
        rank: u32,
        /// Name of the file.
        file: String,
    },
    /// A file is not as long as its rank wrote it.
    #[error("{} has {found_bytes} bytes instead of the {expected_bytes} that rank {rank} wrote", .path.display())]
    FileSize {
        /// The file or directory.
        path: PathBuf,
        /// The rank.
        rank: u32,
        /// Bytes that there should be.
        expected_bytes: u64,
        /// Bytes that are there.
        found_bytes: u64,
    },
    /// Two ranks saved the same elements.
    #[error(
        "elements {region} of tensor `{tensor}` are saved by rank {first_rank} and by rank {second_rank}: save each once"
    )]
    SavedTwice {
        /// Name of the tensor.
        tensor: String,
        /// Which elements.
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
    /// Two ranks give one tensor another dtype or shape.
    #[error(
        "rank {rank} says that tensor `{tensor}` is {found_dtype} of shape {found:?}, another that it is {expected_dtype} of shape {expected:?}"
    )]
    Disagree {
        /// Name of the tensor.
        tensor: String,
        /// The rank.
        rank: u32,
        /// The dtype that another rank gives.
        expected_dtype: StoredDType,
        /// What should be there.
        expected: Vec<u64>,
        /// The dtype that this rank gives.
        found_dtype: StoredDType,
        /// What was found.
        found: Vec<u64>,
    },
}

fn names(attempts: &[AttemptId]) -> String {
    let names: Vec<String> = attempts.iter().map(AttemptId::to_string).collect();
    names.join(", ")
}
