//! What the coordinator knows of a checkpoint before it is saved.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    BlockSize, FormatError, ModuleTypes,
    format::{FILE_BYTES, MAX_WORLD_SIZE, UnknownFields, metadata, texts},
};

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
    /// The plan, in the planner's format; `Null` without one. Stored in a separate file of at most 256 MiB.
    pub plan: serde_json::Value,
    /// The types of the model's modules, at most 16 MiB of JSON; empty if they are not known. An export with PyTorch's names
    /// and layouts needs them.
    pub modules: ModuleTypes,
    /// The settings that decide the losses of the training, by name, at most 1 MiB of JSON; empty if they are not known.
    pub settings: BTreeMap<String, String>,
    /// Digests of what the CPU of the run computes, by class of operation, at most 1 MiB of JSON; empty if they are not known.
    pub numerics: BTreeMap<String, String>,
    /// The number of bytes that one digest covers; `None` for 1 MiB, or more if [`Self::size`] is large.
    pub block_size: Option<BlockSize>,
    /// The size of the save, if known.
    pub size: Option<SaveSize>,
    /// The size in bytes at which a rank starts another file; a larger tensor has its own file.
    pub file_bytes: u64,
    /// Whether an existing checkpoint of the step is replaced, atomically.
    pub replace: bool,
    /// The [unknown fields](crate::Manifest::unknown_fields) of a checkpoint that is saved again.
    pub unknown_fields: UnknownFields,
}

impl CheckpointMeta {
    /// Creates the metadata of a step and a world size, with seed and data position 0, no metadata, no plan,
    /// no types of modules, no settings, blocks of 1 MiB and files of 1 GiB; does not replace an earlier checkpoint of the step.
    pub fn new(step: u64, world_size: u32) -> Self {
        Self {
            step,
            seed: 0,
            data_position: 0,
            world_size,
            metadata: serde_json::Value::Null,
            plan: serde_json::Value::Null,
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

    pub(super) fn check(&self) -> Result<(), FormatError> {
        if self.world_size == 0 || self.world_size > MAX_WORLD_SIZE {
            return Err(FormatError::WorldSize {
                found: self.world_size,
                limit: MAX_WORLD_SIZE,
            });
        }
        if self.file_bytes == 0 {
            return Err(FormatError::FileBytes);
        }
        // Detected here instead of after the save.
        self.modules.to_json()?;
        texts::to_json(&self.settings)?;
        texts::to_json(&self.numerics)?;
        metadata(&self.metadata).map(drop)
    }
}

/// The amount of data in a checkpoint. With it, [`Run::begin`](crate::Run::begin) chooses the block size, and
/// rejects saves whose manifest would be too large before anything is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveSize {
    pub(super) tensors: u64,
    pub(super) chunks: u64,
    pub(super) data_bytes: u64,
    /// JSON size of tensors and scalars, without digests.
    pub(super) entry_bytes: u64,
}
