//! Why bytes or boxes are refused, without a word on files.

use tinderbox_fake::{Region, RegionError};

use crate::Digest;

/// Why a safetensors header is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The header is longer than any reader accepts.
    #[error("the header takes {found_bytes} bytes, the limit is {limit_bytes}")]
    TooLarge {
        /// Bytes that are there.
        found_bytes: u64,
        /// Bytes that are allowed.
        limit_bytes: u64,
    },
    /// The header reaches past the end of the file.
    #[error("the header takes {header_bytes} bytes and reaches past the end at {file_bytes}")]
    PastEnd {
        /// Bytes of the header.
        header_bytes: u64,
        /// Bytes of the file.
        file_bytes: u64,
    },
    /// The header is no JSON object.
    #[error("the header does not start with a brace")]
    Start,
    /// The JSON is not that of a header.
    #[error("the header is not the JSON of a safetensors header")]
    Json {
        /// What went wrong.
        source: serde_json::Error,
    },
    /// A name is there twice, or is reserved.
    #[error("tensor `{tensor}` is there twice or has a reserved name")]
    DuplicateKey {
        /// Name of the tensor.
        tensor: String,
    },
    /// This crate does not read the dtype.
    #[error("tensor `{tensor}` has dtype {found}, which is not supported")]
    UnknownDType {
        /// Name of the tensor.
        tensor: String,
        /// What was found.
        found: String,
    },
    /// The size of a tensor does not fit 64 bits.
    #[error("tensor `{tensor}` of shape {shape:?} is too large")]
    Overflow {
        /// Name of the tensor.
        tensor: String,
        /// Size per dimension.
        shape: Vec<u64>,
    },
    /// A tensor ends before it starts.
    #[error("tensor `{tensor}` has reversed offsets {start_bytes}..{end_bytes}")]
    Reversed {
        /// Name of the tensor.
        tensor: String,
        /// First byte.
        start_bytes: u64,
        /// The byte after the last.
        end_bytes: u64,
    },
    /// Shape, dtype and offsets of a tensor contradict each other.
    #[error(
        "tensor `{tensor}` takes {expected_bytes} bytes by its shape and dtype, and {found_bytes} by its offsets"
    )]
    TensorSize {
        /// Name of the tensor.
        tensor: String,
        /// Bytes that there should be.
        expected_bytes: u64,
        /// Bytes that are there.
        found_bytes: u64,
    },
    /// Bytes before a tensor belong to none.
    #[error(
        "a gap lies before tensor `{tensor}`: it starts at byte {found_bytes} of the data instead of {expected_bytes}"
    )]
    Gap {
        /// Name of the tensor.
        tensor: String,
        /// Bytes that there should be.
        expected_bytes: u64,
        /// Bytes that are there.
        found_bytes: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "tensor `{tensor}` overlaps the one before: it starts at byte {found_bytes} of the data instead of {expected_bytes}"
    )]
    Overlap {
        /// Name of the tensor.
        tensor: String,
        /// Bytes that there should be.
        expected_bytes: u64,
        /// Bytes that are there.
        found_bytes: u64,
    },
    /// The file is longer or shorter than its tensors.
    #[error("the tensors take {expected_bytes} bytes, the file holds {found_bytes}")]
    DataSize {
        /// Bytes that there should be.
        expected_bytes: u64,
        /// Bytes that are there.
        found_bytes: u64,
    },
    /// The header and the manifest contradict each other.
    #[error("tensor `{tensor}` differs from what the manifest says")]
    NotAsListed {
        /// Name of the tensor.
        tensor: String,
    },
}

/// Why chunks don't tile a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A tensor has more chunks than are taken.
    #[error("{found} chunks, at most {limit} are taken")]
    TooManyChunks {
        /// What was found.
        found: usize,
        /// What is allowed.
        limit: usize,
    },
    /// A chunk is not inside its tensor.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A chunk holds nothing.
    #[error("chunk {region} holds no element: leave it out")]
    Empty {
        /// Which elements.
        region: Region,
    },
    /// Two chunks hold the same elements.
    #[error("elements {region} are there twice, in chunks {first} and {second}")]
    Overlap {
        /// Number of the first chunk.
        first: usize,
        /// Number of the second chunk.
        second: usize,
        /// Which elements.
        region: Region,
    },
    /// The chunks lie so that a proof would take too long.
    #[error(
        "the {chunks} chunks lie in no rows and columns: cut the tensor along whole dimensions"
    )]
    Tangled {
        /// Number of the chunks.
        chunks: usize,
    },
    /// Some elements lie in no chunk.
    #[error("{missing} of {elements} elements lie in no chunk: every chunk must be saved")]
    Gap {
        /// Elements in no chunk.
        missing: u64,
        /// Elements of the tensor.
        elements: u64,
    },
}

/// Why a manifest, or a part of one, is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The file is longer than any of its kind.
    #[error("it takes {found_bytes} bytes, the limit is {limit_bytes}")]
    TooLarge {
        /// Bytes that are there.
        found_bytes: u64,
        /// Bytes that are allowed.
        limit_bytes: u64,
    },
    /// What stands around the digest is damaged.
    #[error("it is damaged: the bytes around the digest are not those of this format")]
    Envelope,
    /// The bytes do not have the digest that is written beside them.
    #[error("it is damaged: the digest is {found} instead of {expected}")]
    Digest {
        /// What should be there.
        expected: Digest,
        /// What was found.
        found: Digest,
    },
    /// A number in hexadecimal digits is malformed.
    #[error("not {expected_digits} lower-case hexadecimal digits")]
    Hex {
        /// Digits that there should be.
        expected_digits: usize,
    },
    /// The JSON is not that of the format.
    #[error("its JSON is not that of this format")]
    Json {
        /// What went wrong.
        source: serde_json::Error,
    },
    /// A field is not that of the format.
    #[error("the JSON of its field `{field}` is not that of this format")]
    Field {
        /// Which field.
        field: &'static str,
        /// What went wrong.
        source: serde_json::Error,
    },
    /// JSON of others is nested too deep.
    #[error("its metadata or plan is nested deeper than {limit} levels")]
    Nesting {
        /// Levels that are allowed.
        limit: usize,
    },
    /// Whoever reads it must know a feature that this program does not.
    #[error("it needs the feature `{feature}`, which this program does not know: use a newer one")]
    Feature {
        /// Name of the feature.
        feature: String,
    },
    /// There are more tied names than are taken.
    #[error("{found} names of tied tensors, at most {limit} are taken")]
    TiedNames {
        /// What was found.
        found: usize,
        /// What is allowed.
        limit: usize,
    },
    /// The file is of another format.
    #[error("it is of format `{found}` instead of `{expected}`")]
    Format {
        /// What should be there.
        expected: &'static str,
        /// What was found.
        found: String,
    },
    /// The file is of another version.
    #[error(
        "it has version {found}, this program reads version {expected}: use the program that wrote it, or a newer one"
    )]
    Version {
        /// What should be there.
        expected: u32,
        /// What was found.
        found: u32,
    },
    /// There are no ranks, or too many.
    #[error("world size {found} is not between 1 and {limit}")]
    WorldSize {
        /// What was found.
        found: u32,
        /// What is allowed.
        limit: u32,
    },
    /// Files of no bytes hold no tensor.
    #[error("files are limited to 0 bytes: allow some")]
    FileBytes,
    /// The block size is not allowed.
    #[error("a block of {found} bytes is no power of two between 64 bytes and 64 MiB")]
    BlockSize {
        /// What was found.
        found: u64,
    },
    /// A list is not sorted, or names something twice.
    #[error("the list of {list} is not in order, or has one twice")]
    Order {
        /// Which list.
        list: &'static str,
    },
    /// A name can't be used.
    #[error("name `{name}` {reason}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A file has another name than a writer gives.
    #[error("`{found}` is not a name that a file of this role and rank can have")]
    FileName {
        /// What was found.
        found: String,
    },
    /// A header is longer than its file.
    #[error("a header of {found_bytes} bytes does not fit file {file}")]
    HeaderBytes {
        /// Name of the file.
        file: String,
        /// Bytes that are there.
        found_bytes: u64,
    },
    /// The chunks of a file leave bytes out or share some.
    #[error(
        "the chunks of file {file} leave or share bytes: {found_bytes} follows instead of {expected_bytes}"
    )]
    Data {
        /// Name of the file.
        file: String,
        /// Bytes that there should be.
        expected_bytes: u64,
        /// Bytes that are there.
        found_bytes: u64,
    },
    /// The size of a tensor does not fit 64 bits.
    #[error("tensor `{tensor}` of shape {shape:?} is too large")]
    Shape {
        /// Name of the tensor.
        tensor: String,
        /// Size per dimension.
        shape: Vec<u64>,
    },
    /// The chunks of a tensor are not the whole of it.
    #[error("the chunks of tensor `{tensor}` do not tile it")]
    Layout {
        /// Name of the tensor.
        tensor: String,
        /// What went wrong.
        source: Box<LayoutError>,
    },
    /// Bytes or digests of a chunk do not fit its region.
    #[error("the bytes or digests of chunk {region} of tensor `{tensor}` do not fit its size")]
    ChunkSize {
        /// Name of the tensor.
        tensor: String,
        /// Which elements.
        region: Region,
    },
    /// A chunk lies in a file that is not of the checkpoint.
    #[error("tensor `{tensor}` lies in file {file}, which the manifest does not list for its role")]
    UnlistedFile {
        /// Name of the tensor.
        tensor: String,
        /// Name of the file.
        file: String,
    },
    /// A Hugging Face index is listed where there can be none, or the other way round.
    #[error("a Hugging Face index is listed: {}, can describe this checkpoint: {expected}", !.expected)]
    Index {
        /// What should be there.
        expected: bool,
    },
}
