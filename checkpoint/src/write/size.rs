//! How large a manifest will be, before anything is written.

use std::{collections::BTreeMap, io};

use super::{CheckpointMeta, RankSave, SaveTensor};
use crate::{
    BlockSize, Chunk, SaveError, Scalar, TensorEntry,
    format::{MAX_MANIFEST_BYTES, NamedScalar, shard_file_name, stored_len},
};

/// What a manifest takes beside its lists, without metadata.
const REST_BYTES: u64 = 4096;
/// More than the entry of a file takes.
const FILE_BYTES: u64 = 320;
/// Digits, quotation marks, comma.
const DIGEST_BYTES: u64 = 35;
/// Blocks become larger before a manifest does: what is opened often stays small.
const AIM_BYTES: u64 = MAX_MANIFEST_BYTES / 4;

/// How much a checkpoint will hold. With it, [`Run::begin`](crate::Run::begin) chooses the size of blocks, and refuses
/// what no manifest has room for before anything is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaveSize {
    tensors: u64,
    chunks: u64,
    data_bytes: u64,
    /// JSON of tensors and scalars, without digests.
    entry_bytes: u64,
}

impl SaveSize {
    /// Adds what a rank saves. Nothing of the values is read.
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

    /// Adds a tensor of which there are no values yet. Of its chunks, region, file and length count; digests need not be
    /// there.
    pub fn add_tensor(&mut self, tensor: &TensorEntry) {
        self.tensors += 1;
        self.chunks += tensor.chunks.len() as u64;
        self.data_bytes = self.data_bytes.saturating_add(tensor.bytes());
        let digests = tensor.chunks.iter().map(|chunk| chunk.digests.len() as u64);
        let digests = DIGEST_BYTES * digests.sum::<u64>();
        self.entry_bytes += json_bytes(tensor).saturating_sub(digests);
    }

    fn add_saved(&mut self, tensor: &SaveTensor) {
        // What has no form in a file is refused when it is written.
        let Ok(dtype) = tensor.check() else { return };
        self.add_tensor(&TensorEntry {
            name: tensor.name.clone(),
            tied: tensor.tied.clone(),
            role: tensor.role,
            dtype,
            shape: tensor.shape.clone(),
            chunks: vec![Chunk {
                region: tensor.region.clone(),
                // Not shorter than any.
                file: shard_file_name(tensor.role, 0, 1),
                start_bytes: i64::MAX as u64,
                len_bytes: stored_len(tensor.region.size(), dtype).unwrap_or(0),
                digests: Vec::new(),
            }],
        });
    }

    /// A bound on the bytes of the manifest.
    fn manifest_bytes(&self, meta: &CheckpointMeta, block: BlockSize) -> u64 {
        // Two files that follow each other hold more than the size at which another begins.
        let files = 2 * (self.data_bytes / meta.file_bytes.max(1) + u64::from(meta.world_size));
        let files = files.min(self.chunks);
        let digests = self.data_bytes / block.bytes() + self.chunks;
        let lists = self
            .entry_bytes
            .saturating_add(files.saturating_mul(FILE_BYTES))
            .saturating_add(digests.saturating_mul(DIGEST_BYTES));
        lists.saturating_add(
            REST_BYTES + json_bytes(&meta.metadata) + json_bytes(&meta.unknown_fields),
        )
    }

    /// The size of blocks with which the manifest is small, or not too large.
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
    // What can't be written as JSON is refused when it is.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

#[cfg(test)]
#[path = "tests/size.rs"]
mod tests;
