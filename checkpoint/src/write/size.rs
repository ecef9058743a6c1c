//! Estimation of the manifest size before writing.

use std::{collections::BTreeMap, io};

use super::{CheckpointMeta, RankSave, SaveSize, SaveTensor};
use crate::{
    BlockSize, Chunk, SaveError, Scalar, TensorEntry,
    format::{MAX_MANIFEST_BYTES, NamedScalar, shard_file_name, stored_len},
};

/// The size of a manifest without its lists and metadata.
const REST_BYTES: u64 = 4096;
/// An upper bound on the size of a file entry.
const FILE_BYTES: u64 = 320;
/// Digits, quotation marks, comma.
const DIGEST_BYTES: u64 = 35;
/// The block size increases before the manifest exceeds this size, because a small manifest opens faster.
const AIM_BYTES: u64 = MAX_MANIFEST_BYTES / 4;

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
        tensors.iter().for_each(|tensor| self.add_saved(tensor));
        for (name, value) in scalars {
            self.entry_bytes += json_bytes(&NamedScalar {
                name: name.clone(),
                value: *value,
            });
        }
    }

    /// Adds a tensor whose values do not exist yet. Uses region, file and length of its chunks; their digests
    /// may be missing.
    pub fn add_tensor(&mut self, tensor: &TensorEntry) {
        self.tensors += 1;
        self.chunks += tensor.chunks.len() as u64;
        self.data_bytes = self.data_bytes.saturating_add(tensor.bytes());
        let digests = tensor.chunks.iter().map(|chunk| chunk.digests.len() as u64);
        let digests = DIGEST_BYTES * digests.sum::<u64>();
        self.entry_bytes += json_bytes(tensor).saturating_sub(digests);
    }

    fn add_saved(&mut self, tensor: &SaveTensor) {
        // Unsupported dtypes are rejected when they are written.
        let Ok(dtype) = tensor.check() else { return };
        self.add_tensor(&TensorEntry {
            name: tensor.name.clone(),
            tied: tensor.tied.clone(),
            role: tensor.role,
            dtype,
            shape: tensor.shape.clone(),
            chunks: vec![Chunk {
                region: tensor.region.clone(),
                // An upper bound.
                file: shard_file_name(tensor.role, 0, 1),
                start_bytes: i64::MAX as u64,
                len_bytes: stored_len(tensor.region.size(), dtype).unwrap_or(0),
                digests: Vec::new(),
            }],
        });
    }

    /// Returns an upper bound on the size of the manifest.
    pub(crate) fn manifest_bytes(&self, meta: &CheckpointMeta, block: BlockSize) -> u64 {
        // Two consecutive files together exceed the file size limit.
        let files = 2 * (self.data_bytes / meta.file_bytes.max(1) + u64::from(meta.world_size));
        let files = files.min(self.chunks);
        let digests = self.data_bytes / block.bytes() + self.chunks;
        let lists = self
            .entry_bytes
            .saturating_add(files.saturating_mul(FILE_BYTES))
            .saturating_add(digests.saturating_mul(DIGEST_BYTES));
        let rest = [
            json_bytes(&meta.metadata),
            json_bytes(&meta.modules),
            json_bytes(&meta.settings),
            json_bytes(&meta.numerics),
            json_bytes(&meta.unknown_fields),
        ];
        lists.saturating_add(REST_BYTES + rest.iter().sum::<u64>())
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

fn json_bytes(value: &impl serde::Serialize) -> u64 {
    struct Count(u64);

    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut count = Count(0);
    // Values that can't be serialized are rejected when they are written.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

#[cfg(test)]
#[path = "tests/size.rs"]
mod tests;
