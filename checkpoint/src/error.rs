//! Errors of this crate: [`SaveError`] and [`LoadError`], and what they wrap.

use std::{io, path::PathBuf};

use tinderbox_deferred::Mismatches;
use tinderbox_fake::{Region, RegionError};

use crate::{AttemptId, Digest, StoredDType};

/// Why a safetensors header is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum HeaderError {
    #[error("the header takes {found_bytes} bytes, the limit is {limit_bytes}")]
    TooLarge { found_bytes: u64, limit_bytes: u64 },
    #[error("the header takes {header_bytes} bytes and reaches past the end at {file_bytes}")]
    PastEnd { header_bytes: u64, file_bytes: u64 },
    #[error("the header does not start with a brace")]
    Start,
    #[error("the header is not the JSON of a safetensors header")]
    Json { source: serde_json::Error },
    #[error("tensor `{tensor}` is there twice or has a reserved name")]
    DuplicateKey { tensor: String },
    #[error("tensor `{tensor}` has dtype {found}, which is not supported")]
    UnknownDType { tensor: String, found: String },
    #[error("tensor `{tensor}` of shape {shape:?} is too large")]
    Overflow { tensor: String, shape: Vec<u64> },
    #[error("tensor `{tensor}` has reversed offsets {start_bytes}..{end_bytes}")]
    Reversed {
        tensor: String,
        start_bytes: u64,
        end_bytes: u64,
    },
    #[error(
        "tensor `{tensor}` takes {expected_bytes} bytes by its shape and dtype, and {found_bytes} by its offsets"
    )]
    TensorSize {
        tensor: String,
        expected_bytes: u64,
        found_bytes: u64,
    },
    #[error(
        "a gap lies before tensor `{tensor}`: it starts at byte {found_bytes} of the data instead of {expected_bytes}"
    )]
    Gap {
        tensor: String,
        expected_bytes: u64,
        found_bytes: u64,
    },
    #[error(
        "tensor `{tensor}` overlaps the one before: it starts at byte {found_bytes} of the data instead of {expected_bytes}"
    )]
    Overlap {
        tensor: String,
        expected_bytes: u64,
        found_bytes: u64,
    },
    #[error("the tensors take {expected_bytes} bytes, the file holds {found_bytes}")]
    DataSize {
        expected_bytes: u64,
        found_bytes: u64,
    },
    #[error("tensor `{tensor}` differs from what the manifest says")]
    NotAsListed { tensor: String },
}

/// Why chunks don't tile a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum LayoutError {
    #[error("{found} chunks, at most {limit} are taken")]
    TooManyChunks { found: usize, limit: usize },
    #[error(transparent)]
    Region { source: RegionError },
    #[error("chunk {region} holds no element: leave it out")]
    Empty { region: Region },
    #[error("elements {region} are there twice, in chunks {first} and {second}")]
    Overlap {
        first: usize,
        second: usize,
        region: Region,
    },
    #[error("{missing} of {elements} elements lie in no chunk: every chunk must be saved")]
    Gap { missing: u64, elements: u64 },
}

/// Why a manifest, or a part of one, is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum FormatError {
    #[error("it takes {found_bytes} bytes, the limit is {limit_bytes}")]
    TooLarge { found_bytes: u64, limit_bytes: u64 },
    #[error("it is damaged: the bytes around the digest are not those of this format")]
    Envelope,
    #[error("it is damaged: the digest is {found} instead of {expected}")]
    Digest { expected: Digest, found: Digest },
    #[error("not {expected_digits} lower-case hexadecimal digits")]
    Hex { expected_digits: usize },
    #[error("its JSON is not that of this format")]
    Json { source: serde_json::Error },
    #[error("it is of format `{found}` instead of `{expected}`")]
    Format {
        expected: &'static str,
        found: String,
    },
    #[error(
        "it has version {found}, this program reads version {expected}: use the program that wrote it, or a newer one"
    )]
    Version { expected: u32, found: u32 },
    #[error("world size {found} is not between 1 and {limit}")]
    WorldSize { found: u32, limit: u32 },
    #[error("a block of {found} bytes is no power of two between 64 bytes and 64 MiB")]
    BlockSize { found: u64 },
    #[error("the list of {list} is not in order, or has one twice")]
    Order { list: &'static str },
    #[error("name `{name}` {reason}")]
    Name { name: String, reason: &'static str },
    #[error("`{found}` is not a name that a file of this role and rank can have")]
    FileName { found: String },
    #[error("a header of {found_bytes} bytes does not fit file {file}")]
    HeaderBytes { file: String, found_bytes: u64 },
    #[error(
        "the chunks of file {file} leave or share bytes: {found_bytes} follows instead of {expected_bytes}"
    )]
    Data {
        file: String,
        expected_bytes: u64,
        found_bytes: u64,
    },
    #[error("tensor `{tensor}` of shape {shape:?} is too large")]
    Shape { tensor: String, shape: Vec<u64> },
    #[error("the chunks of tensor `{tensor}` do not tile it")]
    Layout {
        tensor: String,
        source: Box<LayoutError>,
    },
    #[error("the bytes or digests of chunk {region} of tensor `{tensor}` do not fit its size")]
    ChunkSize { tensor: String, region: Region },
    #[error("tensor `{tensor}` lies in file {file}, which the manifest does not list for its role")]
    UnlistedFile { tensor: String, file: String },
    #[error("a Hugging Face index is listed: {}, can describe this checkpoint: {expected}", !.expected)]
    Index { expected: bool },
}

/// Why a save failed. Nothing was published, and earlier checkpoints are as they were.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum SaveError {
    #[error("can't {action} {}", .path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} is there already and is never overwritten: move it away, or save another step", .path.display())]
    StepExists { path: PathBuf },
    #[error("rank {rank} of a world of {world_size}")]
    RankOutOfRange { rank: u32, world_size: u32 },
    #[error("rank {rank} has written {} already", .path.display())]
    RankWritten { rank: u32, path: PathBuf },
    #[error("tensor `{tensor}` has dtype {found}, which has no form in a file: cast it first")]
    UnsupportedDType { tensor: String, found: String },
    #[error("tensor `{tensor}` has data of shape {found:?} for region {expected}")]
    DataShape {
        tensor: String,
        expected: Region,
        found: Vec<u64>,
    },
    #[error("a chunk of tensor `{tensor}` can't be saved")]
    Layout { tensor: String, source: LayoutError },
    #[error("tensor `{tensor}` can't be saved")]
    Name { tensor: String, source: FormatError },
    #[error("the header of {file} can't be written")]
    Header { file: String, source: HeaderError },
    #[error("the attempt can't be described")]
    Meta { source: FormatError },
    #[error(
        "no part of rank(s) {ranks:?} after {waited_ms} ms: look at their errors, or wait longer"
    )]
    MissingRanks { ranks: Vec<u32>, waited_ms: u128 },
    #[error("{} can't be used", .path.display())]
    Part { path: PathBuf, source: FormatError },
    #[error("{} is of attempt {found} instead of {expected}: a rank wrote into the wrong attempt", .path.display())]
    WrongAttempt {
        path: PathBuf,
        expected: AttemptId,
        found: AttemptId,
    },
    #[error("{} is of rank {found} instead of {expected}", .path.display())]
    WrongRank {
        path: PathBuf,
        expected: u32,
        found: u32,
    },
    #[error("{} has {found_bytes} bytes instead of the {expected_bytes} that rank {rank} wrote", .path.display())]
    FileSize {
        path: PathBuf,
        rank: u32,
        expected_bytes: u64,
        found_bytes: u64,
    },
    #[error(
        "elements {region} of tensor `{tensor}` are saved by rank {first_rank} and by rank {second_rank}: save each once"
    )]
    SavedTwice {
        tensor: String,
        region: Region,
        first_rank: u32,
        second_rank: u32,
    },
    #[error(
        "scalar `{scalar}` is saved by rank {first_rank} and by rank {second_rank}: save it once"
    )]
    ScalarTwice {
        scalar: String,
        first_rank: u32,
        second_rank: u32,
    },
    #[error(
        "rank {rank} says that tensor `{tensor}` is {found_dtype} of shape {found:?}, another that it is {expected_dtype} of shape {expected:?}"
    )]
    Disagree {
        tensor: String,
        rank: u32,
        expected_dtype: StoredDType,
        expected: Vec<u64>,
        found_dtype: StoredDType,
        found: Vec<u64>,
    },
}

/// Why a checkpoint can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum LoadError {
    #[error("can't {action} {}", .path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} is no published checkpoint: it has no manifest", .path.display())]
    NotPublished { path: PathBuf },
    #[error("{} is not a plain file: links are not followed", .path.display())]
    NotAFile { path: PathBuf },
    #[error("{} can't be used", .path.display())]
    Manifest { path: PathBuf, source: FormatError },
    #[error("{} holds step {found}, by its name it should hold {expected}", .path.display())]
    WrongStep {
        path: PathBuf,
        expected: u64,
        found: u64,
    },
    #[error("{} has {found_bytes} bytes instead of {expected_bytes}", .path.display())]
    FileSize {
        path: PathBuf,
        expected_bytes: u64,
        found_bytes: u64,
    },
    #[error("{} is damaged: the digest of its {what} is {found} instead of {expected}", .path.display())]
    DamagedFile {
        path: PathBuf,
        what: &'static str,
        expected: Digest,
        found: Digest,
    },
    #[error("the header of {} can't be used", .path.display())]
    Header { path: PathBuf, source: HeaderError },
    #[error("tensor `{tensor}` is damaged: the digest of bytes {start_bytes}..{end_bytes} of {} is {found} instead of {expected}", .path.display())]
    DamagedTensor {
        path: PathBuf,
        tensor: String,
        start_bytes: u64,
        end_bytes: u64,
        expected: Digest,
        found: Digest,
    },
    #[error("tensor `{tensor}` of {} holds a truth value that is neither 0 nor 1", .path.display())]
    TruthValue { path: PathBuf, tensor: String },
    #[error("no memory for {bytes} bytes of tensor `{tensor}`")]
    OutOfMemory { tensor: String, bytes: u64 },
    #[error("region of tensor `{tensor}`")]
    Region { tensor: String, source: RegionError },
    #[error("{} does not hold optimizer state {names:?}", .path.display())]
    MissingState { path: PathBuf, names: Vec<String> },
    #[error("{} does not fit the model, nothing was loaded:{mismatches}", .path.display())]
    Mismatch {
        path: PathBuf,
        mismatches: Mismatches,
    },
    #[error("none of the {} checkpoint(s) in {} can be used:{}", .reasons.len(), .path.display(), list(.reasons))]
    NoneUsable {
        path: PathBuf,
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
