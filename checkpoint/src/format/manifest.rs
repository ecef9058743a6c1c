//! The manifest: the description of a checkpoint's contents.

use std::collections::BTreeMap;

use derive_more::Display;
use serde::{Deserialize, Deserializer, Serialize};
use tinderbox_fake::{Region, RegionError};

use super::json::Json;
use super::limits::MAX_DIMENSIONS;
use super::{ModuleTypes, Scalar, lists, texts};
use crate::{AttemptId, BlockSize, Digest, StoredDType, layout::MAX_CHUNKS};

/// The value of `format` in a manifest.
pub(crate) const FORMAT: &str = "tinderbox-checkpoint";
/// The minor version that this code writes. Version 1.0 stores the plan in the manifest. The manifest has the types of modules
/// since version 1.2, and settings and numerics since version 1.3.
pub(crate) const MINOR: u32 = 3;

/// The role of a tensor; parameters and optimizer state never share a file.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[display(rename_all = "lowercase")]
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A parameter or buffer of the model.
    Model,
    /// State of the optimizer.
    State,
}

/// The contents of a checkpoint. `FORMAT.md` describes every field.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Manifest {
    pub(crate) format: &'static str,
    pub(crate) version: u32,
    pub(crate) minor: u32,
    /// The attempt that wrote it.
    pub attempt: AttemptId,
    /// Number of completed optimizer steps.
    pub step: u64,
    /// Seed of the run.
    pub seed: u64,
    /// The position in the training data, in the caller's unit.
    pub data_position: u64,
    /// Number of ranks that saved.
    pub world_size: u32,
    /// The number of bytes that one digest covers.
    pub block_bytes: BlockSize,
    pub(crate) metadata: Json,
    pub(crate) plan: Option<StoredPlan>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) modules: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) settings: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) numerics: Option<Json>,
    #[serde(serialize_with = "lists::serialize_scalars")]
    pub(crate) scalars: BTreeMap<String, Scalar>,
    /// Every safetensors file, by name.
    pub files: Vec<FileEntry>,
    /// The Hugging Face index, if the checkpoint has one.
    pub index: Option<DocumentEntry>,
    /// Every tensor, by role and name.
    pub tensors: Vec<TensorEntry>,
    /// Fields that this version does not know and preserves.
    #[serde(flatten)]
    pub(crate) unknown: UnknownFields,
}

/// Manifest fields that a newer version or another program has written. This version does not interpret them, and preserves
/// their text when the checkpoint is saved again.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct UnknownFields(pub(super) BTreeMap<String, Json>);

impl UnknownFields {
    /// Returns their names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns the value of a field, parsed on every call: integers beyond 64 bits become floats.
    pub fn value(&self, name: &str) -> Option<serde_json::Value> {
        self.0.get(name).map(Json::value)
    }
}

/// The location of the plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum StoredPlan {
    /// In a separate file.
    File(DocumentEntry),
    /// In the manifest, as in version 1.0.
    Inline(Json),
}

impl Manifest {
    /// Returns the caller's metadata, at most 1 MiB of JSON, parsed on every call.
    pub fn metadata(&self) -> serde_json::Value {
        self.metadata.value()
    }

    /// Returns whether the checkpoint was saved with a plan.
    pub fn has_plan(&self) -> bool {
        self.plan.is_some()
    }

    /// Returns the entry of the plan's file, unless the plan is in the manifest.
    pub(crate) fn plan_file(&self) -> Option<&DocumentEntry> {
        match &self.plan {
            Some(StoredPlan::File(entry)) => Some(entry),
            _ => None,
        }
    }

    /// Returns the parameters, by name.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &TensorEntry> {
        let tensors = self.tensors.iter();
        tensors.filter(|tensor| tensor.role == Role::Model)
    }

    /// Returns whether the Hugging Face index can describe the parameters: each is one chunk, because the index can't represent
    /// a part of a tensor.
    pub(crate) fn is_indexable(&self) -> bool {
        let mut parameters = self.parameters().peekable();
        parameters.peek().is_some() && parameters.all(|tensor| tensor.chunks.len() == 1)
    }

    /// Returns the types of the model's modules, parsed on every call; empty if the checkpoint was saved without them.
    pub fn modules(&self) -> ModuleTypes {
        ModuleTypes::of_json(self.modules.as_ref())
    }

    /// Returns the settings that determined the losses of the training, by name, parsed on every call; empty if the checkpoint
    /// was saved without them.
    pub fn settings(&self) -> BTreeMap<String, String> {
        texts::of_json(self.settings.as_ref())
    }

    /// Returns digests of the results that the CPU of the run computes, by class of operation, parsed on every call; empty if
    /// the checkpoint was saved without them.
    pub fn numerics(&self) -> BTreeMap<String, String> {
        texts::of_json(self.numerics.as_ref())
    }

    /// Returns the fields that this version does not know.
    pub fn unknown_fields(&self) -> &UnknownFields {
        &self.unknown
    }
}

/// A safetensors file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// File name in the directory of the checkpoint.
    pub name: String,
    /// The role of its tensors.
    pub role: Role,
    /// The rank that wrote it.
    pub rank: u32,
    /// Index of the file among the files of this role and rank, from 0.
    pub number: u32,
    /// Size of the file.
    pub size_bytes: u64,
    /// Offset of the data section: the size of the length prefix, the header and its padding.
    pub header_bytes: u64,
    /// Digest of everything before the data.
    pub header_digest: Digest,
}

/// Another file of a checkpoint: the Hugging Face index or the plan.
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
    /// The name; for a parameter, its path.
    pub name: String,
    /// Other names of the same tensor, sorted: the other paths of a tied weight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "lists::names")]
    pub tied: Vec<String>,
    /// The role of the tensor.
    pub role: Role,
    /// Type of an element.
    pub dtype: StoredDType,
    /// Size per dimension of the whole tensor.
    #[serde(deserialize_with = "lists::dimensions")]
    pub shape: Vec<u64>,
    /// Boxes that tile the tensor exactly.
    #[serde(deserialize_with = "chunks")]
    pub chunks: Vec<Chunk>,
}

impl TensorEntry {
    /// Returns the region of the whole tensor.
    pub(crate) fn region(&self) -> Region {
        Region::whole(&self.shape).expect("a listed tensor's elements can be counted")
    }

    /// Returns the key by which tensors are sorted in a manifest.
    pub(crate) fn key(&self) -> (Role, &str) {
        (self.role, &self.name)
    }

    /// Returns all names of the tensor: its own name and the tied names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.name).chain(&self.tied)
    }

    /// Returns the size of the tensor in the files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.len_bytes).sum()
    }
}

/// Deserializes the chunks of a tensor, up to one more than the limit, which validation rejects.
fn chunks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Chunk>, D::Error> {
    lists::list_while(deserializer, |all: &[Chunk]| all.len() <= MAX_CHUNKS)
}

/// A box of a tensor and the location of its elements, which are stored in row-major order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawChunk")]
pub struct Chunk {
    /// The elements.
    #[serde(flatten)]
    pub region: Region,
    /// Name of the file.
    pub file: String,
    /// Offset of the first byte from the start of the file.
    pub start_bytes: u64,
    /// Number of bytes.
    pub len_bytes: u64,
    /// Digest of each block of the chunk, relative to the chunk's first byte.
    pub digests: Vec<Digest>,
}

/// A chunk as JSON. The deserialization of `Region` has no limit on the number of dimensions.
#[derive(Deserialize)]
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

impl TryFrom<RawChunk> for Chunk {
    type Error = RegionError;

    fn try_from(raw: RawChunk) -> Result<Self, RegionError> {
        let (offset, size) = (raw.offset.len(), raw.size.len());
        if offset.max(size) > MAX_DIMENSIONS {
            // Shortened, because the list could also be too long for a message.
            return Err(RegionError::RankMismatch { offset, size });
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
