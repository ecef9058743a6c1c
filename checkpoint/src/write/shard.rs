//! What a rank writes: its safetensors files.

use std::{
    borrow::Cow,
    cmp::Reverse,
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
};

use burn::tensor::TensorData;
use tinderbox_fake::Region;

use super::durable::failed;
use crate::{
    BlockSize, Digest, LayoutError, SaveError, StoredDType,
    dtype::stored_bytes,
    format::{
        Chunk, FileEntry, Role, TensorEntry, check_tensor_name, chunk_key, encode_header,
        shard_file_name, stored_len,
    },
};

/// Bytes that are gathered before a write: small tensors share one, large ones go past it.
const BUFFER_BYTES: usize = 1 << 20;

/// A tensor, or a box of one, that a rank saves.
#[derive(Clone, Debug)]
pub struct SaveTensor {
    /// Its name: for a parameter, its path. Up to 4096 bytes, not empty, not `__metadata__`.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Size per dimension of the whole tensor.
    pub shape: Vec<u64>,
    /// Which elements `data` holds. The regions that all ranks give must tile the tensor.
    pub region: Region,
    /// The elements, row-major, of the region's size.
    pub data: TensorData,
}

impl SaveTensor {
    /// A tensor that one rank saves whole.
    pub fn whole(name: impl Into<String>, role: Role, data: TensorData) -> Self {
        let region = Region::of_shape(data.shape());
        Self {
            name: name.into(),
            role,
            shape: region.size().to_vec(),
            region,
            data,
        }
    }

    /// Refuses what has no form in a file, before any file is made.
    pub(super) fn check(&self) -> Result<StoredDType, SaveError> {
        let tensor = || self.name.clone();
        check_tensor_name(&self.name).map_err(|source| SaveError::Name {
            tensor: tensor(),
            source,
        })?;
        let dtype =
            StoredDType::of(self.data.dtype()).ok_or_else(|| SaveError::UnsupportedDType {
                tensor: tensor(),
                found: self.data.dtype().name().to_owned(),
            })?;
        if stored_len(&self.shape, dtype).is_none() {
            return Err(SaveError::Name {
                tensor: tensor(),
                source: crate::FormatError::Shape {
                    tensor: tensor(),
                    shape: self.shape.clone(),
                },
            });
        }
        let layout = |source| SaveError::Layout {
            tensor: tensor(),
            source,
        };
        self.region
            .check_inside(&self.shape)
            .map_err(|source| layout(LayoutError::Region { source }))?;
        if self.region.num_elements() == 0 && !self.region.is_whole(&self.shape) {
            return Err(layout(LayoutError::Empty {
                region: self.region.clone(),
            }));
        }
        let found: Vec<u64> = self.data.shape().iter().map(|d| *d as u64).collect();
        if found != self.region.size() {
            return Err(SaveError::DataShape {
                tensor: tensor(),
                expected: self.region.clone(),
                found,
            });
        }
        Ok(dtype)
    }
}

/// Writes one file and makes its bytes durable; says what it holds. Removes the file when it fails.
///
/// Memory: one buffer of 1 MiB and the header; the tensors are written from where they are.
pub(super) fn write_shard(
    dir: &Path,
    role: Role,
    rank: u32,
    block: BlockSize,
    tensors: &[(&SaveTensor, StoredDType)],
) -> Result<(FileEntry, Vec<TensorEntry>), SaveError> {
    let name = shard_file_name(role, rank);
    let path = dir.join(&name);
    // Wide elements first, so that every tensor is aligned in the file; then by name.
    let mut tensors = tensors.to_vec();
    tensors.sort_by_key(|(t, dtype)| (Reverse(dtype.size_bytes()), &t.name, &t.region));
    let keys: Vec<String> = tensors
        .iter()
        .map(|(t, _)| chunk_key(&t.name, &t.shape, &t.region))
        .collect();
    let listed: Vec<(&str, StoredDType, &[u64])> = keys
        .iter()
        .zip(&tensors)
        .map(|(key, (t, dtype))| (&**key, *dtype, t.region.size()))
        .collect();
    // Hugging Face's loader takes a file only when its metadata has a format.
    let header =
        encode_header(&[("format", "pt")], &listed).map_err(|source| SaveError::Header {
            file: name.clone(),
            source,
        })?;
    // `create_new`: a file that is there belongs to somebody, and stays.
    let file = File::create_new(&path).map_err(|source| {
        if source.kind() == std::io::ErrorKind::AlreadyExists {
            SaveError::RankWritten {
                rank,
                path: path.clone(),
            }
        } else {
            failed("create", &path)(source)
        }
    })?;
    let written = write_data(file, &header, block, &name, &tensors);
    let (size_bytes, entries) = written.map_err(|source| {
        // The first error is the one to report.
        let _ = fs::remove_file(&path);
        failed("write", &path)(source)
    })?;
    let entry = FileEntry {
        name,
        role,
        rank,
        size_bytes,
        header_bytes: header.len() as u64,
        header_digest: Digest::of(&header),
    };
    Ok((entry, entries))
}

fn write_data(
    file: File,
    header: &[u8],
    block: BlockSize,
    name: &str,
    tensors: &[(&SaveTensor, StoredDType)],
) -> std::io::Result<(u64, Vec<TensorEntry>)> {
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
    out.write_all(header)?;
    let mut at = header.len() as u64;
    let mut entries = Vec::with_capacity(tensors.len());
    for (tensor, dtype) in tensors {
        let bytes: Cow<'_, [u8]> = stored_bytes(&tensor.data);
        let len = bytes.len() as u64;
        let mut digests = Vec::new();
        // A block at a time, so that it is still in the cache when it is written.
        for bytes in block.split(&bytes) {
            digests.push(Digest::of(bytes));
            out.write_all(bytes)?;
        }
        entries.push(TensorEntry {
            name: tensor.name.clone(),
            role: tensor.role,
            dtype: *dtype,
            shape: tensor.shape.clone(),
            chunks: vec![Chunk {
                region: tensor.region.clone(),
                file: name.to_owned(),
                start_bytes: at,
                len_bytes: len,
                digests,
            }],
        });
        at += len;
    }
    let file = out.into_inner().map_err(|e| e.into_error())?;
    file.sync_all()?;
    Ok((at, entries))
}
