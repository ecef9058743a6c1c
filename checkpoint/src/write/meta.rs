//! The description of a checkpoint before it is saved, and an estimate of the size of its manifest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{RankSave, SaveTensor};
use crate::format::{
    FILE_BYTES, FORMAT, Json, MAX_MANIFEST_BYTES, MAX_METADATA_BYTES, MINOR, NamedScalar, VERSION,
    check_world_size, names, texts,
};
use crate::{
    AttemptId, BlockSize, Chunk, Manifest, ModuleTypes, SaveError, Scalar, TensorEntry,
    UnknownFields,
};

/// The size of a manifest without its lists and metadata.
const REST_BYTES: u64 = 4096;
/// An upper bound on the size of a file entry.
const FILE_ENTRY_BYTES: u64 = 320;
/// The size of a digest in JSON: digits, quotation marks, comma.
const DIGEST_BYTES: u64 = 35;
/// The block size increases before the manifest exceeds this size, because a small manifest opens faster.
const AIM_BYTES: u64 = MAX_MANIFEST_BYTES / 4;

/// The metadata of a checkpoint that the coordinator supplies.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointMeta {
    /// Number of completed optimizer steps; determines the name of the directory.
    pub step: u64,
    /// Seed of the run.
    pub seed: u64,
    /// The position in the training data, in the caller's unit.
    pub data_position: u64,
    /// Number of ranks that save, 1 to 65,536.
    pub world_size: u32,
    /// Metadata of the caller, such as a model's configuration; at most 1 MiB of JSON.
    pub metadata: serde_json::Value,
    /// The plan, in the planner's format, if there is one. Stored in a separate file of at most 256 MiB.
    pub plan: Option<serde_json::Value>,
    /// The types of the model's modules, at most 16 MiB of JSON; empty if they are not known. An export with PyTorch's names
    /// and layouts needs them.
    pub modules: ModuleTypes,
    /// The settings that determine the losses of the training, by name, at most 1 MiB of JSON; empty if they are not known.
    pub settings: BTreeMap<String, String>,
    /// Digests of the results that the CPU of the run computes, by class of operation, at most 1 MiB of JSON; empty if they are
    /// not known.
    pub numerics: BTreeMap<String, String>,
    /// The number of bytes that one digest covers; with `None` 1 MiB, or more if [`Self::size`] is large.
    pub block_size: Option<BlockSize>,
    /// The size of the save, if known.
    pub size: Option<SaveSize>,
    /// The size in bytes at which a rank starts another file; a larger tensor has its own file. With 0, every tensor has.
    pub file_bytes: u64,
    /// Whether an existing checkpoint of the step is replaced, atomically.
    pub replace: bool,
    /// The [unknown fields](crate::Manifest::unknown_fields) of a checkpoint that is saved again.
    pub unknown_fields: UnknownFields,
}

impl CheckpointMeta {
    /// Creates the metadata of a step and a world size: seed and data position 0, no metadata, no plan, no types of modules, no
    /// settings, blocks of 1 MiB and files of 1 GiB. It does not replace an earlier checkpoint of the step.
    pub fn new(step: u64, world_size: u32) -> Self {
        Self {
            step,
            seed: 0,
            data_position: 0,
            world_size,
            metadata: serde_json::Value::Null,
            plan: None,
            modules: ModuleTypes::default(),
            settings: BTreeMap::new(),
            numerics: BTreeMap::new(),
            block_size: None,
            size: None,
            file_bytes: FILE_BYTES,
            replace: false,
            unknown_fields: UnknownFields::default(),
        }
    }

    /// Creates the manifest of a new attempt, in the current version, without the plan and without the contents of the ranks.
    pub(crate) fn manifest(&self) -> Result<Manifest, SaveError> {
        check_world_size(self.world_size)?;
        Ok(Manifest {
            format: FORMAT,
            version: VERSION,
            minor: MINOR,
            attempt: AttemptId::fresh(),
            step: self.step,
            seed: self.seed,
            data_position: self.data_position,
            world_size: self.world_size,
            block_bytes: self.size.unwrap_or_default().block_size(self)?,
            metadata: Json::of(&self.metadata, MAX_METADATA_BYTES)?,
            plan: None,
            modules: self.modules.to_json()?,
            settings: texts::to_json(&self.settings)?,
            numerics: texts::to_json(&self.numerics)?,
            scalars: BTreeMap::new(),
            files: Vec::new(),
            index: None,
            tensors: Vec::new(),
            unknown: self.unknown_fields.clone(),
        })
    }
}

/// The amount of data in a checkpoint. [`Run::begin`](crate::Run::begin) uses it to choose the block size, and to reject a save
/// whose manifest would be too large before anything is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveSize {
    tensors: u64,
    chunks: u64,
    data_bytes: u64,
    /// JSON size of tensors and scalars, without digests.
    entry_bytes: u64,
}

impl SaveSize {
    /// Adds the contents of other ranks.
    pub fn add_size(&mut self, other: Self) {
        self.tensors = self.tensors.saturating_add(other.tensors);
        self.chunks = self.chunks.saturating_add(other.chunks);
        self.data_bytes = self.data_bytes.saturating_add(other.data_bytes);
        self.entry_bytes = self.entry_bytes.saturating_add(other.entry_bytes);
    }

    /// Adds the contents of a rank. Does not read values.
    pub fn add_rank(&mut self, save: &RankSave) {
        self.add(&save.tensors, &save.scalars);
    }

    pub(super) fn add(&mut self, tensors: &[SaveTensor], scalars: &BTreeMap<String, Scalar>) {
        for tensor in tensors {
            // Unsupported dtypes are rejected when they are written.
            let Ok(dtype) = tensor.check() else { continue };
            let chunk = Chunk {
                region: tensor.region.clone(),
                file: names::shard_file(tensor.role, 0, 1),
                // An upper bound.
                start_bytes: i64::MAX as u64,
                len_bytes: tensor.bytes(),
                digests: Vec::new(),
            };
            self.add_tensor(&tensor.entry(dtype, chunk));
        }
        let scalars = scalars.iter().map(NamedScalar::of);
        self.entry_bytes += scalars.map(|scalar| json_bytes(&scalar)).sum::<u64>();
    }

    /// Adds a tensor whose values do not exist yet. Uses region, file and length of its chunks; their digests may be missing.
    fn add_tensor(&mut self, tensor: &TensorEntry) {
        self.tensors += 1;
        self.chunks += tensor.chunks.len() as u64;
        self.data_bytes = self.data_bytes.saturating_add(tensor.bytes());
        let digests = tensor.chunks.iter().map(|chunk| chunk.digests.len() as u64);
        let digests = DIGEST_BYTES * digests.sum::<u64>();
        self.entry_bytes += json_bytes(tensor).saturating_sub(digests);
    }

    /// Returns an upper bound on the size of the manifest, at most twice its size. A save whose manifest would need more than
    /// half of the limit may therefore be refused.
    pub(crate) fn manifest_bytes(&self, meta: &CheckpointMeta, block: BlockSize) -> u64 {
        // Two consecutive files together exceed the file size limit.
        let files = 2 * (self.data_bytes / meta.file_bytes.max(1) + u64::from(meta.world_size));
        let files = files.min(self.chunks);
        let digests = self.data_bytes / block.bytes() + self.chunks;
        let lists = [
            files.saturating_mul(FILE_ENTRY_BYTES),
            digests.saturating_mul(DIGEST_BYTES),
            REST_BYTES,
            json_bytes(&meta.metadata),
            json_bytes(&meta.modules),
            json_bytes(&meta.settings),
            json_bytes(&meta.numerics),
            json_bytes(&meta.unknown_fields),
        ];
        let lists = lists.into_iter();
        lists.fold(self.entry_bytes, u64::saturating_add)
    }

    /// Returns the block size that keeps the manifest small, or at least within its limit.
    pub(super) fn block_size(&self, meta: &CheckpointMeta) -> Result<BlockSize, SaveError> {
        let from = BlockSize::default().bytes();
        let sizes = (0..).map_while(|doubled| BlockSize::new(from << doubled).ok());
        let block = match meta.block_size {
            Some(block) => block,
            None => sizes
                .clone()
                .find(|block| self.manifest_bytes(meta, *block) <= AIM_BYTES)
                .or(sizes.last())
                .unwrap_or_default(),
        };
        match self.manifest_bytes(meta, block) {
            bytes if bytes > MAX_MANIFEST_BYTES => Err(SaveError::ManifestSize {
                expected_bytes: bytes,
                limit_bytes: MAX_MANIFEST_BYTES,
                tensors: self.tensors,
                chunks: self.chunks,
                block_bytes: block.bytes(),
            }),
            _ => Ok(block),
        }
    }
}

fn json_bytes(value: &impl Serialize) -> u64 {
    // Values that can't be serialized are rejected when they are written.
    serde_json::to_vec(value).map_or(0, |json| json.len() as u64)
}

#[cfg(test)]
#[path = "tests/size.rs"]
mod tests;
