//! Compares the estimate with encoded manifests, up to the manifest of a model of a trillion parameters.

use std::collections::BTreeMap;

use tinderbox_fake::Region;

use super::*;
use crate::format::{Manifest, encode_manifest};
use crate::{Chunk, Digest, DocumentEntry, FileEntry, Role, Scalar, StoredDType};

const MIB: u64 = 1 << 20;

/// A model on several ranks, without values.
struct Simulated {
    ranks: u32,
    /// By role and name: the shape, the number of ranks that hold rows of it, and the first of them.
    tensors: BTreeMap<(Role, String), (Vec<u64>, u32, u32)>,
    scalars: BTreeMap<String, Scalar>,
}

impl Simulated {
    /// Creates a decoder, each layer in rows on neighbouring ranks, with both moments of Adam.
    fn decoder(layers: u32, width: u64, ranks: u32) -> Self {
        let per_layer = (ranks / layers).max(1);
        let mut tensors = BTreeMap::new();
        let mut scalars = BTreeMap::new();
        for layer in 0..layers {
            let first_rank = layer * ranks / layers;
            for (name, shape) in [
                ("attention.query.weight", vec![width, width]),
                ("attention.key.weight", vec![width, width]),
                ("attention.value.weight", vec![width, width]),
                ("attention.output.weight", vec![width, width]),
                ("feed_forward.inner.weight", vec![width, 4 * width]),
                ("feed_forward.outer.weight", vec![4 * width, width]),
                ("norm_1.gamma", vec![width]),
                ("norm_2.gamma", vec![width]),
            ] {
                let name = format!("layers.{layer}.{name}");
                let on = if shape.len() > 1 { per_layer } else { 1 };
                for field in ["moment_1", "moment_2"] {
                    let state = format!("optimizer.{name}.{field}");
                    tensors.insert((Role::State, state), (shape.clone(), first_rank, on));
                }
                scalars.insert(format!("optimizer.{name}.time"), Scalar::Uint(100_000));
                tensors.insert((Role::Model, name), (shape, first_rank, on));
            }
        }
        Self {
            ranks,
            tensors,
            scalars,
        }
    }

    fn parameters(&self) -> u64 {
        let tensors = self.tensors.iter();
        let model = tensors.filter(|((role, _), _)| *role == Role::Model);
        model
            .map(|(_, (shape, ..))| shape.iter().product::<u64>())
            .sum()
    }

    fn entries(&self, block: BlockSize) -> Vec<TensorEntry> {
        let mut ends = BTreeMap::new();
        let entries = self
            .tensors
            .iter()
            .map(|((role, name), (shape, first, on))| {
                let rows = shape[0] / u64::from(*on);
                assert_eq!(rows * u64::from(*on), shape[0]);
                let chunks = (0..*on).map(|at| {
                    let (mut offset, mut size) = (vec![0; shape.len()], shape.clone());
                    (offset[0], size[0]) = (rows * u64::from(at), rows);
                    let len_bytes = 4 * size.iter().product::<u64>();
                    let file = names::shard_file(*role, first + at, 0);
                    let end = ends.entry(file.clone()).or_insert(HEADER_BYTES);
                    let start_bytes = *end;
                    *end += len_bytes;
                    let digests = len_bytes.div_ceil(block.bytes());
                    let digest = |at: u64| Digest::of(&at.to_le_bytes());
                    Chunk {
                        region: Region::new(offset, size).unwrap(),
                        file,
                        start_bytes,
                        len_bytes,
                        digests: (0..digests).map(digest).collect(),
                    }
                });
                TensorEntry {
                    name: name.clone(),
                    tied: Vec::new(),
                    role: *role,
                    dtype: StoredDType::F32,
                    shape: shape.clone(),
                    chunks: chunks.collect(),
                }
            });
        entries.collect()
    }

    fn files(tensors: &[TensorEntry]) -> Vec<FileEntry> {
        let mut sizes: BTreeMap<(Role, String), u64> = BTreeMap::new();
        for tensor in tensors {
            for chunk in &tensor.chunks {
                let size = sizes.entry((tensor.role, chunk.file.clone())).or_default();
                *size = (*size).max(chunk.start_bytes + chunk.len_bytes);
            }
        }
        let files = sizes
            .into_iter()
            .map(|((role, name), size_bytes)| FileEntry {
                rank: name[name.len() - "00000.safetensors".len()..][..5]
                    .parse()
                    .unwrap(),
                name,
                role,
                number: 0,
                size_bytes,
                header_bytes: HEADER_BYTES,
                header_digest: Digest::of(b""),
            });
        files.collect()
    }

    /// Returns the size as known before writing.
    fn size(&self) -> SaveSize {
        let mut size = SaveSize::default();
        let no_digests = |mut tensor: TensorEntry| {
            tensor
                .chunks
                .iter_mut()
                .for_each(|chunk| chunk.digests.clear());
            tensor
        };
        let entries = self.entries(BlockSize::new(64 * MIB).unwrap());
        entries
            .into_iter()
            .for_each(|tensor| size.add_tensor(&no_digests(tensor)));
        size.add_rank(&RankSave {
            tensors: Vec::new(),
            scalars: self.scalars.clone(),
        });
        size
    }

    /// Returns the encoded manifest, after checking that it can be decoded.
    fn manifest(&self, meta: &CheckpointMeta, block: BlockSize) -> Vec<u8> {
        let tensors = self.entries(block);
        let parts = tensors.iter().filter(|tensor| tensor.role == Role::Model);
        let whole = parts.into_iter().all(|tensor| tensor.chunks.len() == 1);
        let meta = CheckpointMeta {
            block_size: Some(block),
            ..meta.clone()
        };
        let mut manifest = meta.manifest().unwrap();
        manifest.files = Self::files(&tensors);
        manifest.index = whole.then(|| DocumentEntry {
            size_bytes: 1,
            digest: Digest::of(b""),
        });
        manifest.scalars = self.scalars.clone();
        manifest.tensors = tensors;
        let bytes = encode_manifest(&manifest).unwrap();
        assert_eq!(Manifest::from_bytes(&bytes).unwrap(), manifest);
        bytes
    }
}

/// The size of a small header.
const HEADER_BYTES: u64 = 1024;

#[test]
fn a_trillion_parameters_on_1024_ranks_have_a_manifest() {
    let model = Simulated::decoder(128, 25_600, 1024);
    assert!(
        model.parameters() > 1_000_000_000_000,
        "{}",
        model.parameters()
    );
    let meta = CheckpointMeta {
        size: Some(model.size()),
        ..CheckpointMeta::new(100_000, model.ranks)
    };
    let block = model.size().block_size(&meta).unwrap();
    assert!(block.bytes() > MIB, "{block:?}");
    let bytes = model.manifest(&meta, block).len() as u64;
    let expected = model.size().manifest_bytes(&meta, block);
    assert!(
        bytes <= expected && expected <= 2 * bytes,
        "{expected} for {bytes}"
    );
    assert!(bytes <= AIM_BYTES, "{bytes}");
    // With blocks of 1 MiB the manifest would exceed the limit.
    let small = CheckpointMeta {
        block_size: Some(BlockSize::default()),
        ..meta
    };
    let refused = model.size().block_size(&small).unwrap_err();
    assert!(
        matches!(refused, SaveError::ManifestSize { .. }),
        "{refused}"
    );
    assert!(model.size().manifest_bytes(&small, BlockSize::default()) > MAX_MANIFEST_BYTES);
}

#[test]
fn the_estimate_is_a_bound_and_near() {
    for (layers, width, ranks) in [(1, 8, 1), (4, 64, 2), (24, 1024, 8), (96, 12_288, 96)] {
        let model = Simulated::decoder(layers, width, ranks);
        for block in [MIB, 64 * MIB] {
            let block = BlockSize::new(block).unwrap();
            let meta = CheckpointMeta::new(1, ranks);
            let bytes = model.manifest(&meta, block).len() as u64;
            let expected = model.size().manifest_bytes(&meta, block);
            assert!(bytes <= expected, "{expected} for {bytes}");
            assert!(expected <= 2 * bytes + REST_BYTES, "{expected} for {bytes}");
        }
    }
}

#[test]
fn small_models_keep_small_blocks() {
    let model = Simulated::decoder(32, 4096, 8);
    let meta = CheckpointMeta::new(1, 8);
    let block = model.size().block_size(&meta).unwrap();
    assert_eq!(block, BlockSize::default());
    let chosen = BlockSize::new(64).unwrap();
    let meta = CheckpointMeta {
        block_size: Some(chosen),
        ..meta
    };
    assert_eq!(SaveSize::default().block_size(&meta).unwrap(), chosen);
}
