//! Errors of headers, layouts and manifests, independent of any file.

use tinderbox_fake::{Region, RegionError};

use crate::Digest;

/// An invalid safetensors header.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The header is longer than any reader accepts.
    #[error("the header has {found_bytes} bytes, the limit is {limit_bytes}")]
    TooLarge {
        /// Actual number of bytes.
        found_bytes: u64,
        /// Maximum number of bytes.
        limit_bytes: u64,
    },
    /// The header extends past the end of the file.
    #[error(
        "the header of {header_bytes} bytes extends past the end of the file at byte {file_bytes}"
    )]
    PastEnd {
        /// Size of the header.
        header_bytes: u64,
        /// Size of the file.
        file_bytes: u64,
    },
    /// The header is not a JSON object.
    #[error("the header does not start with `{{`")]
    NotAnObject,
    /// The JSON is not a safetensors header.
    #[error("the JSON is not a safetensors header")]
    Json {
        /// The cause.
        #[from]
        source: serde_json::Error,
    },
    /// The burnpack file has a version that this crate does not know.
    #[error("the burnpack file has version {found}, which is not supported: only version 1 is")]
    PackVersion {
        /// The actual version.
        found: u16,
    },
    /// Burn would refuse the burnpack file for its size.
    #[error(
        "a burnpack file with tensor `{tensor}` would be refused by Burn: {found_bytes} bytes, the limit is {limit_bytes}; \
         export `safetensors` files instead"
    )]
    PackLimit {
        /// Name of the tensor that exceeds the limit, alone or with the tensors before it.
        tensor: String,
        /// Number of bytes.
        found_bytes: u64,
        /// Maximum number of bytes.
        limit_bytes: u64,
    },
    /// The CBOR is not a burnpack header.
    #[error("the CBOR is not a burnpack header: {reason}")]
    Cbor {
        /// The message of the CBOR decoder.
        reason: String,
    },
    /// A name occurs twice or is reserved.
    #[error("tensor `{tensor}` is listed twice or has a reserved name")]
    DuplicateKey {
        /// Name of the tensor.
        tensor: String,
    },
    /// The dtype is not supported.
    #[error("tensor `{tensor}` has dtype {found}, which is not supported")]
    UnknownDType {
        /// Name of the tensor.
        tensor: String,
        /// The actual value.
        found: String,
    },
    /// The size of a tensor in bytes does not fit 64 bits.
    #[error("tensor `{tensor}` of shape {shape:?} is too large")]
    Overflow {
        /// Name of the tensor.
        tensor: String,
        /// Size per dimension.
        shape: Vec<u64>,
    },
    /// Shape, dtype and offsets of a tensor contradict each other.
    #[error(
        "tensor `{tensor}` has {expected_bytes} bytes by its shape and dtype, but its offsets are {start_bytes}..{end_bytes}"
    )]
    TensorSize {
        /// Name of the tensor.
        tensor: String,
        /// Expected number of bytes.
        expected_bytes: u64,
        /// First byte.
        start_bytes: u64,
        /// End of the range, exclusive; may be less than the first byte.
        end_bytes: u64,
    },
    /// Two tensors share bytes, or bytes between them belong to no tensor.
    #[error(
        "tensor `{tensor}` {}: it starts at byte {found_bytes} of the data instead of {expected_bytes}",
        if found_bytes < expected_bytes { "overlaps the previous tensor" } else { "follows a gap" }
    )]
    Start {
        /// Name of the tensor.
        tensor: String,
        /// The end of the previous tensor.
        expected_bytes: u64,
        /// The start of the tensor.
        found_bytes: u64,
    },
    /// The data section is longer or shorter than the tensors.
    #[error("the tensors have {expected_bytes} bytes, the file holds {found_bytes}")]
    DataSize {
        /// Expected number of bytes.
        expected_bytes: u64,
        /// Actual number of bytes.
        found_bytes: u64,
    },
    /// The header and the manifest contradict each other.
    #[error("tensor `{tensor}` does not match its entry in the manifest")]
    NotAsListed {
        /// Name of the tensor.
        tensor: String,
    },
}

/// The reason why chunks do not tile a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A tensor has too many chunks.
    #[error("{found} chunks, at most {limit} are supported")]
    TooManyChunks {
        /// The actual value.
        found: usize,
        /// The maximum.
        limit: usize,
    },
    /// A chunk extends outside its tensor.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A chunk is empty.
    #[error("chunk {region} is empty: omit it")]
    Empty {
        /// The elements.
        region: Region,
    },
    /// Two chunks hold the same elements.
    #[error("elements {region} are contained twice, in chunks {first} and {second}")]
    Overlap {
        /// Number of the first chunk.
        first: usize,
        /// Number of the second chunk.
        second: usize,
        /// The elements.
        region: Region,
    },
    /// The chunks form an irregular pattern that would take too long to check.
    #[error("the {chunks} chunks do not form a grid: cut the tensor along whole dimensions")]
    Tangled {
        /// Number of the chunks.
        chunks: usize,
    },
    /// Some elements are in no chunk.
    #[error("{missing} of {elements} elements are in no chunk: every chunk must be saved")]
    Gap {
        /// Elements in no chunk.
        missing: u64,
        /// Elements of the tensor.
        elements: u64,
    },
}

/// An invalid manifest, part or marker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The file is longer than the limit for its kind.
    #[error("it has {found_bytes} bytes, the limit is {limit_bytes}")]
    TooLarge {
        /// Actual number of bytes.
        found_bytes: u64,
        /// Maximum number of bytes.
        limit_bytes: u64,
    },
    /// The envelope around the digest is damaged.
    #[error("it is damaged: the bytes around the digest do not match this format")]
    Envelope,
    /// The digest in the file does not match the bytes.
    #[error("it is damaged: the digest is {found} instead of {expected}")]
    Digest {
        /// The expected value.
        expected: Digest,
        /// The actual value.
        found: Digest,
    },
    /// A hexadecimal number is malformed.
    #[error("expected {} lower-case hexadecimal digits", Digest::HEX_LEN)]
    Hex,
    /// The JSON does not match the format.
    #[error("its JSON does not match the format")]
    Json {
        /// The cause.
        #[from]
        source: serde_json::Error,
    },
    /// The JSON of a field does not match the format.
    #[error("the JSON of its field `{field}` does not match the format")]
    Field {
        /// The field.
        field: &'static str,
        /// The cause.
        source: serde_json::Error,
    },
    /// The metadata or the plan is nested too deeply.
    #[error("its metadata or plan is nested more than {limit} levels deep")]
    Nesting {
        /// Maximum number of levels.
        limit: usize,
    },
    /// The file requires a feature that this program does not support.
    #[error(
        "it requires the feature `{feature}`, which this program does not support: use a newer version"
    )]
    Feature {
        /// Name of the feature.
        feature: String,
    },
    /// There are too many tied names.
    #[error("{found} names of tied tensors, at most {limit} are supported")]
    TiedNames {
        /// The actual value.
        found: usize,
        /// The maximum.
        limit: usize,
    },
    /// The file has another format.
    #[error("its format is `{found}` instead of `{expected}`")]
    Format {
        /// The expected value.
        expected: &'static str,
        /// The actual value.
        found: String,
    },
    /// The file has another version of the format.
    #[error(
        "it has version {found}, this program reads version {expected}: use the version of the program that wrote it, or a \
         newer one"
    )]
    Version {
        /// The expected value.
        expected: u32,
        /// The actual value.
        found: u32,
    },
    /// The world size is zero or too large.
    #[error("world size {found} is not between 1 and {limit}")]
    WorldSize {
        /// The actual value.
        found: u32,
        /// The maximum.
        limit: u32,
    },
    /// The block size is not allowed.
    #[error("the block size {found} is not a power of two between 64 bytes and 64 MiB")]
    BlockSize {
        /// The actual value.
        found: u64,
    },
    /// A list is unsorted or has duplicates.
    #[error("the list of {list} is not sorted, or has duplicates")]
    Order {
        /// The list.
        list: &'static str,
    },
    /// A name is invalid.
    #[error("name `{name}` {reason}")]
    Name {
        /// The name.
        name: String,
        /// Why it is invalid.
        reason: &'static str,
    },
    /// A file name differs from the one that a writer would choose.
    #[error("`{found}` is not a valid name for a file of this role and rank")]
    FileName {
        /// The actual value.
        found: String,
    },
    /// A header is longer than its file.
    #[error("a header of {found_bytes} bytes does not fit into file {file}")]
    HeaderBytes {
        /// Name of the file.
        file: String,
        /// Actual number of bytes.
        found_bytes: u64,
    },
    /// The chunks of a file leave gaps or overlap.
    #[error(
        "the chunks of file {file} leave bytes out or overlap: the next starts at byte {found_bytes} instead of \
         {expected_bytes}"
    )]
    Data {
        /// Name of the file.
        file: String,
        /// Expected number of bytes.
        expected_bytes: u64,
        /// Actual number of bytes.
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
    /// The chunks of a tensor do not tile it.
    #[error("the chunks of tensor `{tensor}` do not tile it")]
    Layout {
        /// Name of the tensor.
        tensor: String,
        /// The cause.
        source: Box<LayoutError>,
    },
    /// The byte count or the number of digests of a chunk does not match its region.
    #[error(
        "the byte count or number of digests of chunk {region} of tensor `{tensor}` does not match its size"
    )]
    ChunkSize {
        /// Name of the tensor.
        tensor: String,
        /// The elements.
        region: Region,
    },
    /// A chunk is in a file that the manifest does not list.
    #[error("tensor `{tensor}` is in file {file}, which the manifest does not list for its role")]
    UnlistedFile {
        /// Name of the tensor.
        tensor: String,
        /// Name of the file.
        file: String,
    },
    /// The manifest lists a Hugging Face index although the form can't describe the checkpoint, or omits it
    /// although it can.
    #[error("a Hugging Face index is listed: {}; it can describe this checkpoint: {expected}", !.expected)]
    Index {
        /// The expected value.
        expected: bool,
    },
}
