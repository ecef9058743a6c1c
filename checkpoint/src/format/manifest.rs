//! The manifest: what a checkpoint holds.

use std::collections::BTreeMap;

use derive_more::Display;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeSeq};
use tinderbox_fake::Region;

use super::{
    AttemptId, Scalar,
    document::{Fields, VERSION},
    envelope,
    json::Json,
    lists, validate,
    validate::MAX_DIMENSIONS,
};
use crate::{BlockSize, CheckpointMeta, Digest, FormatError, StoredDType};

/// The value of `format` in a manifest.
const FORMAT: &str = "tinderbox-checkpoint";
/// What this code writes beyond version 1.0, which has the plan in the manifest.
const MINOR: u32 = 1;
/// The largest manifest that is read, in bytes.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 256 << 20;

/// What a tensor is for; parameters and optimizer state never share a file.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Display,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A parameter or buffer of the model.
    #[display("model")]
    Model,
    /// State of the optimizer.
    #[display("state")]
    State,
}

/// What a checkpoint holds. `FORMAT.md` describes every field.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Manifest {
    format: &'static str,
    version: u32,
    minor: u32,
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
    pub(crate) metadata: Json,
    pub(crate) plan: StoredPlan,
    #[serde(serialize_with = "serialize_scalars")]
    pub(crate) scalars: BTreeMap<String, Scalar>,
    /// Every safetensors file, by name.
    pub files: Vec<FileEntry>,
    /// The Hugging Face index, where there is one.
    pub index: Option<DocumentEntry>,
    /// Every tensor, by role and name.
    pub tensors: Vec<TensorEntry>,
    /// Fields that this version does not know, and keeps.
    #[serde(flatten)]
    pub(crate) unknown: UnknownFields,
}

/// The fields of a manifest that a newer version or another program has written. They mean nothing here, and go along,
/// as they are written, when the checkpoint is saved again.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct UnknownFields(BTreeMap<String, Json>);

impl UnknownFields {
    /// Their names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The value of one, parsed at each call: integers beyond 64 bits become floats.
    pub fn value(&self, name: &str) -> Option<serde_json::Value> {
        self.0.get(name).map(Json::value)
    }
}

/// Where the plan is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum StoredPlan {
    /// There is none.
    None(()),
    /// In a file of its own.
    File(DocumentEntry),
    /// In the manifest, as version 1.0 wrote it.
    Inline(Json),
}

impl Manifest {
    /// The manifest of the bytes of its file, proven: digest, version, limits, names, layout. Touches no
    /// other file.
    ///
    /// Memory: at most three times the bytes beside them.
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
        meta: &CheckpointMeta,
        block_bytes: BlockSize,
        listed: Listed,
    ) -> Result<Self, FormatError> {
        Ok(Self {
            format: FORMAT,
            version: VERSION,
            minor: MINOR,
            attempt,
            step: meta.step,
            seed: meta.seed,
            data_position: meta.data_position,
            world_size: meta.world_size,
            block_bytes,
            metadata: validate::metadata(&meta.metadata)?,
            plan: listed.plan.map_or(StoredPlan::None(()), StoredPlan::File),
            scalars: listed.scalars,
            files: listed.files,
            index: listed.index,
            tensors: listed.tensors,
            unknown: meta.unknown_fields.clone(),
        })
    }

    /// The caller's own, at most 1 MiB of JSON. It is parsed at each call.
    pub fn metadata(&self) -> serde_json::Value {
        self.metadata.value()
    }

    /// Whether it was saved with a plan.
    pub fn has_plan(&self) -> bool {
        self.plan != StoredPlan::None(())
    }

    /// The fields that this version does not know.
    pub fn unknown_fields(&self) -> &UnknownFields {
        &self.unknown
    }
}

/// What a checkpoint holds, in the manifest's order.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) plan: Option<DocumentEntry>,
    pub(crate) files: Vec<FileEntry>,
    pub(crate) index: Option<DocumentEntry>,
    pub(crate) tensors: Vec<TensorEntry>,
    pub(crate) scalars: BTreeMap<String, Scalar>,
}

/// A scalar of the optimizer with its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NamedScalar {
    pub(crate) name: String,
    pub(crate) value: Scalar,
}

/// As the list of version 1.
fn serialize_scalars<S: Serializer>(
    scalars: &BTreeMap<String, Scalar>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(Some(scalars.len()))?;
    for (name, value) in scalars {
        list.serialize_element(&NamedScalar {
            name: name.clone(),
            value: *value,
        })?;
    }
    list.end()
}

/// A safetensors file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// Another file of a checkpoint: the Hugging Face index, the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentEntry {
    /// Size of the file.
    pub size_bytes: u64,
    /// Digest of all its bytes.
    pub digest: Digest,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Its name: for a parameter, its path.
    pub name: String,
    /// Other names of the same tensor, in order: the other paths of a tied weight.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "lists::names"
    )]
    pub tied: Vec<String>,
    /// What it is for.
    pub role: Role,
    /// Type of an element.
    pub dtype: StoredDType,
    /// Size per dimension of the whole tensor.
    #[serde(deserialize_with = "lists::dimensions")]
    pub shape: Vec<u64>,
    /// Boxes that tile it exactly.
    #[serde(deserialize_with = "lists::chunks")]
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
struct RawChunk {
    #[serde(deserialize_with = "lists::dimensions")]
    offset: Vec<u64>,
    #[serde(deserialize_with = "lists::dimensions")]
    size: Vec<u64>,
    file: String,
    start_bytes: u64,
    len_bytes: u64,
    #[serde(deserialize_with = "lists::list")]
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
    let bytes = envelope::seal(manifest)?;
    decode_manifest(&bytes)?;
    Ok(bytes)
}

/// The manifest of these bytes, proven: digest, version, limits, names, layout.
pub(crate) fn decode_manifest(bytes: &[u8]) -> Result<Manifest, FormatError> {
    let mut fields = Fields::of(bytes, FORMAT)?;
    let minor = fields.take_or_default("minor")?;
    let metadata = fields.take_text("metadata")?;
    let plan = match minor {
        0 => StoredPlan::inline(fields.take_text("plan")?)?,
        _ => match fields.take("plan")? {
            Some(entry) => StoredPlan::File(entry),
            None => StoredPlan::None(()),
        },
    };
    let manifest = Manifest {
        format: FORMAT,
        version: VERSION,
        minor,
        attempt: fields.take("attempt")?,
        step: fields.take("step")?,
        seed: fields.take("seed")?,
        data_position: fields.take("data_position")?,
        world_size: fields.take("world_size")?,
        block_bytes: fields.take("block_bytes")?,
        metadata: Json::within(metadata, validate::MAX_METADATA_BYTES)?,
        plan,
        scalars: fields.take_with("scalars", |json| lists::scalars(json))?,
        files: fields.take_with("files", |json| lists::list(json))?,
        index: fields.take("index")?,
        tensors: fields.take_with("tensors", |json| lists::tensors(json))?,
        unknown: UnknownFields(fields.rest()?),
    };
    validate::check_manifest(&manifest)?;
    Ok(manifest)
}

impl StoredPlan {
    fn inline(text: &str) -> Result<Self, FormatError> {
        match text {
            "null" => Ok(Self::None(())),
            text => Json::within(text, validate::MAX_INLINE_PLAN_BYTES).map(Self::Inline),
        }
    }
}
