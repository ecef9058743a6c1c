//! The manifest: what a checkpoint holds.

use std::fmt;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tinderbox_fake::Region;

use super::{
    AttemptId, Scalar, envelope, extent::field_extents, validate, validate::MAX_DIMENSIONS,
};
use crate::{BlockSize, CheckpointMeta, Digest, FormatError, StoredDType, error::short};

/// The value of `format` in a manifest.
pub(super) const FORMAT: &str = "tinderbox-checkpoint";
/// The one version that this code writes and reads.
pub(super) const VERSION: u32 = 1;
/// The largest manifest that is read, in bytes: about 7 TiB of data in blocks of 1 MiB.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 256 << 20;

/// What a tensor is for; parameters and optimizer state never share a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A parameter or buffer of the model.
    Model,
    /// State of the optimizer.
    State,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::State => "state",
        })
    }
}

/// What a checkpoint holds. `FORMAT.md` describes every field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub(crate) format: String,
    pub(crate) version: u32,
    /// The attempt that wrote it.
    pub attempt: AttemptId,
    /// Optimizer steps that were done.
    pub step: u64,
    /// Seed of the run.
    pub seed: u64,
    /// How far the data was read, in the caller's unit.
    pub data_position: u64,
    /// Number of ranks that saved.
    pub world_size: u32,
    /// Bytes that one digest covers.
    pub block_bytes: BlockSize,
    /// The caller's own; at most 1 MiB of JSON.
    pub metadata: serde_json::Value,
    /// How the model was cut when it was saved, in the planner's own form; `null` without one.
    pub plan: serde_json::Value,
    pub(crate) scalars: Vec<NamedScalar>,
    /// Every safetensors file, by name.
    pub files: Vec<FileEntry>,
    /// The Hugging Face index, where there is one.
    pub index: Option<IndexEntry>,
    /// Every tensor, by role and name.
    pub tensors: Vec<TensorEntry>,
}

impl Manifest {
    /// The manifest of the bytes of its file, proven: digest, version, limits, names, layout. Touches no
    /// other file.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        decode_manifest(bytes)
    }

    /// What a coordinator knows and what the ranks said, in the form of this version.
    pub(crate) fn new(
        attempt: AttemptId,
        meta: CheckpointMeta,
        files: Vec<FileEntry>,
        index: Option<IndexEntry>,
        tensors: Vec<TensorEntry>,
        scalars: Vec<NamedScalar>,
    ) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            attempt,
            step: meta.step,
            seed: meta.seed,
            data_position: meta.data_position,
            world_size: meta.world_size,
            block_bytes: meta.block_size,
            metadata: meta.metadata,
            plan: meta.plan,
            scalars,
            files,
            index,
            tensors,
        }
    }
}

/// A scalar of the optimizer with its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamedScalar {
    pub(crate) name: String,
    pub(crate) value: Scalar,
}

/// A safetensors file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Name in the directory of the checkpoint.
    pub name: String,
    /// What its tensors are for.
    pub role: Role,
    /// The rank that wrote it.
    pub rank: u32,
    /// Number of the file among those of this role and rank, from 0.
    pub number: u32,
    /// Size of the file.
    pub size_bytes: u64,
    /// Where its data starts: the length, the header and its padding.
    pub header_bytes: u64,
    /// Digest of everything before the data.
    pub header_digest: Digest,
}

/// The Hugging Face index file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexEntry {
    /// Size of the file.
    pub size_bytes: u64,
    /// Digest of all its bytes.
    pub digest: Digest,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// Its name: for a parameter, its path.
    pub name: String,
    /// Other names of the same tensor, in order: the other paths of a tied weight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tied: Vec<String>,
    /// What it is for.
    pub role: Role,
    /// Type of an element.
    pub dtype: StoredDType,
    /// Size per dimension of the whole tensor.
    pub shape: Vec<u64>,
    /// Boxes that tile it exactly.
    pub chunks: Vec<Chunk>,
}

impl TensorEntry {
    /// Bytes of the tensor in the files.
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.len_bytes).sum()
    }
}

/// A box of a tensor, and where its elements lie in row-major order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "RawChunk", try_from = "RawChunk")]
pub struct Chunk {
    /// Which elements.
    pub region: Region,
    /// Name of the file.
    pub file: String,
    /// First byte, counted from the start of the file.
    pub start_bytes: u64,
    /// Number of bytes.
    pub len_bytes: u64,
    /// Digest of each block of the chunk, counted from its first byte.
    pub digests: Vec<Digest>,
}

/// A chunk as JSON: `Region`'s own form would take an offset and a size that overflow.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawChunk {
    offset: Vec<u64>,
    size: Vec<u64>,
    file: String,
    start_bytes: u64,
    len_bytes: u64,
    digests: Vec<Digest>,
}

impl From<Chunk> for RawChunk {
    fn from(chunk: Chunk) -> Self {
        Self {
            offset: chunk.region.offset().to_vec(),
            size: chunk.region.size().to_vec(),
            file: chunk.file,
            start_bytes: chunk.start_bytes,
            len_bytes: chunk.len_bytes,
            digests: chunk.digests,
        }
    }
}

impl TryFrom<RawChunk> for Chunk {
    type Error = tinderbox_fake::RegionError;

    fn try_from(raw: RawChunk) -> Result<Self, Self::Error> {
        if raw.offset.len().max(raw.size.len()) > MAX_DIMENSIONS {
            // What is too long for a message too.
            return Err(tinderbox_fake::RegionError::RankMismatch {
                offset: raw.offset.len(),
                size: raw.size.len(),
            });
        }
        Ok(Self {
            region: Region::new(raw.offset, raw.size)?,
            file: raw.file,
            start_bytes: raw.start_bytes,
            len_bytes: raw.len_bytes,
            digests: raw.digests,
        })
    }
}

/// The bytes of the manifest file.
///
/// # Errors
///
/// When a reader would refuse them: it is validated here as there.
pub(crate) fn encode_manifest(manifest: &Manifest) -> Result<Vec<u8>, FormatError> {
    let body =
        serde_json::to_vec_pretty(manifest).map_err(|source| FormatError::Json { source })?;
    let bytes = envelope::seal(&body);
    decode_manifest(&bytes)?;
    Ok(bytes)
}

/// The manifest of these bytes, proven: digest, version, limits, names, layout.
pub(crate) fn decode_manifest(bytes: &[u8]) -> Result<Manifest, FormatError> {
    // Parsed, a small value takes many times the memory of its text.
    for (field, found_bytes) in field_extents(body_of(bytes)?) {
        let limit_bytes = match field {
            b"metadata" => validate::MAX_METADATA_BYTES,
            b"plan" => validate::MAX_PLAN_BYTES,
            _ => continue,
        };
        if found_bytes > limit_bytes {
            return Err(FormatError::TooLarge {
                found_bytes,
                limit_bytes,
            });
        }
    }
    let manifest: Manifest = decode_document(bytes, FORMAT)?;
    validate::check_manifest(&manifest)?;
    Ok(manifest)
}

/// The body of a sealed document that is not too large.
fn body_of(bytes: &[u8]) -> Result<&[u8], FormatError> {
    if bytes.len() as u64 > MAX_MANIFEST_BYTES {
        return Err(FormatError::TooLarge {
            found_bytes: bytes.len() as u64,
            limit_bytes: MAX_MANIFEST_BYTES,
        });
    }
    envelope::open(bytes)
}

/// A sealed document of this kind and of our version. The version is looked at first, so that a newer
/// file is told apart from a damaged one.
pub(super) fn decode_document<T: DeserializeOwned>(
    bytes: &[u8],
    expected_format: &'static str,
) -> Result<T, FormatError> {
    #[derive(Deserialize)]
    struct Kind {
        format: String,
        version: u32,
    }
    let body = body_of(bytes)?;
    let kind: Kind = serde_json::from_slice(body).map_err(|source| FormatError::Json { source })?;
    if kind.format != expected_format {
        return Err(FormatError::Format {
            expected: expected_format,
            found: short(&kind.format),
        });
    }
    if kind.version != VERSION {
        return Err(FormatError::Version {
            expected: VERSION,
            found: kind.version,
        });
    }
    serde_json::from_slice(body).map_err(|source| FormatError::Json { source })
}
