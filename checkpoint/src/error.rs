//! Errors of this crate: [`SaveError`] and [`LoadError`], and what they wrap.

mod format;

use std::{io, path::PathBuf};

use tinderbox_deferred::Mismatches;
use tinderbox_fake::{Region, RegionError};

use crate::{AttemptId, Digest, StoredDType};

pub use format::{FormatError, HeaderError, LayoutError};

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
    #[error("{} is there already and is never overwritten: move it away, or save another step", .path.display())]
    StepExists {
        /// The file or directory.
        path: PathBuf,
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
    /// What the coordinator says of the step can't be written.
    #[error("the attempt can't be described")]
    Meta {
        /// What went wrong.
        source: FormatError,
    },
    /// Some ranks did not write their part in time.
    #[error(
        "no part of rank(s) {ranks:?} after {waited_ms} ms: look at their errors, or wait longer"
    )]
    MissingRanks {
        /// Which ranks.
        ranks: Vec<u32>,
        /// Milliseconds that were waited.
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

/// Why a checkpoint can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
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
    /// The directory is no checkpoint.
    #[error("{} is no published checkpoint: it has no manifest", .path.display())]
    NotPublished {
        /// The file or directory.
        path: PathBuf,
    },
    /// A file of the checkpoint is a link or a directory.
    #[error("{} is not a plain file: links are not followed", .path.display())]
    NotAFile {
        /// The file or directory.
        path: PathBuf,
    },
    /// The manifest is damaged, or of another version.
    #[error("{} can't be used", .path.display())]
    Manifest {
        /// The file or directory.
        path: PathBuf,
        /// What went wrong.
        source: FormatError,
    },
    /// The directory has the name of another step.
    #[error("{} holds step {found}, by its name it should hold {expected}", .path.display())]
    WrongStep {
        /// The file or directory.
        path: PathBuf,
        /// What should be there.
        expected: u64,
        /// What was found.
        found: u64,
    },
    /// A file is longer or shorter than the manifest says.
    #[error("{} has {found_bytes} bytes instead of {expected_bytes}", .path.display())]
    FileSize {
        /// The file or directory.
        path: PathBuf,
        /// Bytes that there should be.
        expected_bytes: u64,
        /// Bytes that are there.
        found_bytes: u64,
    },
    /// Bytes of a file that belong to no tensor are damaged.
    #[error("{} is damaged: the digest of its {what} is {found} instead of {expected}", .path.display())]
    DamagedFile {
        /// The file or directory.
        path: PathBuf,
        /// Which part of the file.
        what: &'static str,
        /// What should be there.
        expected: Digest,
        /// What was found.
        found: Digest,
    },
    /// The header of a file is not valid.
    #[error("the header of {} can't be used", .path.display())]
    Header {
        /// The file or directory.
        path: PathBuf,
        /// What went wrong.
        source: HeaderError,
    },
    /// Bytes of a tensor are damaged.
    #[error("tensor `{tensor}` is damaged: the digest of bytes {start_bytes}..{end_bytes} of {} is {found} instead of {expected}", .path.display())]
    DamagedTensor {
        /// The file or directory.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// First byte.
        start_bytes: u64,
        /// The byte after the last.
        end_bytes: u64,
        /// What should be there.
        expected: Digest,
        /// What was found.
        found: Digest,
    },
    /// A truth value is neither 0 nor 1.
    #[error("tensor `{tensor}` of {} holds a truth value that is neither 0 nor 1", .path.display())]
    TruthValue {
        /// The file or directory.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
    },
    /// A tensor does not fit the memory.
    #[error("no memory for {bytes} bytes of tensor `{tensor}`")]
    OutOfMemory {
        /// Name of the tensor.
        tensor: String,
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// A region does not lie inside its tensor.
    #[error("region of tensor `{tensor}`")]
    Region {
        /// Name of the tensor.
        tensor: String,
        /// What went wrong.
        source: RegionError,
    },
    /// State of the optimizer was not saved.
    #[error("{} does not hold optimizer state {names:?}", .path.display())]
    MissingState {
        /// The file or directory.
        path: PathBuf,
        /// Names of what is missing.
        names: Vec<String>,
    },
    /// The parameters are not those of the model.
    #[error("{} does not fit the model, nothing was loaded:{mismatches}", .path.display())]
    Mismatch {
        /// The file or directory.
        path: PathBuf,
        /// All that differs.
        mismatches: Mismatches,
    },
    /// There are checkpoints, and all are damaged.
    #[error("none of the {} checkpoint(s) in {} can be used:{}", .reasons.len(), .path.display(), list(.reasons))]
    NoneUsable {
        /// The file or directory.
        path: PathBuf,
        /// Why each can't be used.
        reasons: Vec<LoadError>,
    },
}

/// One reason to a line, each with its sources.
fn list(reasons: &[LoadError]) -> String {
    reasons
        .iter()
        .map(|r| format!("\n  {}", chain(r)))
        .collect()
}

/// An error with its sources, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}
