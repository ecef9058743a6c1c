//! The safetensors files of a rank: the assignment of tensors to files, and their bytes.

use std::cmp::Reverse;

use super::{SaveTensor, failed};
use crate::{
    Digest, SaveError, StoredDType,
    digest::BlockDigests,
    format::{
        Chunk, FileEntry, Marker, Role, TensorEntry, chunk_key, encode_header, shard_file_name,
        stored_len,
    },
    store::{Store, WriteFile, join},
};
use tinderbox_deferred::Observer;

/// A file to write.
#[derive(Debug)]
pub(super) struct Shard<'a> {
    pub(super) name: String,
    role: Role,
    rank: u32,
    number: u32,
    tensors: Vec<(&'a SaveTensor, StoredDType)>,
    header: Vec<u8>,
    pub(super) data_bytes: u64,
}

/// Divides the tensors of a rank into files by role, with wide elements first, so that every tensor is
/// aligned in its file, then by name. Files of a role have approximately equal sizes, within the limit unless
/// a single tensor is larger.
pub(super) fn plan_shards<'a>(
    rank: u32,
    tensors: &'a [SaveTensor],
    limit_bytes: u64,
) -> Result<Vec<Shard<'a>>, SaveError> {
    let mut checked = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        checked.push((tensor, tensor.check()?));
    }
    checked.sort_by_key(|(t, dtype)| (t.role, Reverse(dtype.size_bytes()), &t.name, &t.region));
    let mut shards = Vec::new();
    for of_role in checked.chunk_by(|(a, _), (b, _)| a.role == b.role) {
        let total: u64 = of_role.iter().map(bytes_of).sum();
        // The required number of files, each approximately equal in size.
        let aim = total.div_ceil(total.div_ceil(limit_bytes).max(1)).max(1);
        let (mut first, mut bytes, mut number) = (0, 0u64, 0);
        for (at, tensor) in of_role.iter().enumerate() {
            let more = bytes_of(tensor);
            let full = bytes >= aim || bytes + more > limit_bytes;
            if full && at > first {
                shards.push(shard(rank, number, &of_role[first..at])?);
                (first, bytes, number) = (at, 0, number + 1);
            }
            bytes += more;
        }
        shards.push(shard(rank, number, &of_role[first..])?);
    }
    Ok(shards)
}

fn bytes_of((tensor, dtype): &(&SaveTensor, StoredDType)) -> u64 {
    // The tensor was checked, so its size fits.
    stored_len(tensor.region.size(), *dtype).unwrap_or(u64::MAX)
}

fn shard<'a>(
    rank: u32,
    number: u32,
    tensors: &[(&'a SaveTensor, StoredDType)],
) -> Result<Shard<'a>, SaveError> {
    let role = tensors[0].0.role;
    let name = shard_file_name(role, rank, number);
    let keys: Vec<String> = tensors
        .iter()
        .map(|(t, _)| chunk_key(&t.name, &t.shape, &t.region))
        .collect();
    let listed: Vec<(&str, StoredDType, &[u64])> = keys
        .iter()
        .zip(tensors)
        .map(|(key, (t, dtype))| (&**key, *dtype, t.region.size()))
        .collect();
    // Hugging Face's loader requires a format in the metadata.
    let header =
        encode_header(&[("format", "pt")], &listed).map_err(|source| SaveError::Header {
            file: name.clone(),
            source,
        })?;
    Ok(Shard {
        name,
        role,
        rank,
        number,
        data_bytes: tensors.iter().map(bytes_of).sum(),
        tensors: tensors.to_vec(),
        header,
    })
}

impl Shard<'_> {
    /// Writes the file and makes its bytes durable; returns its entries for the manifest. Removes the file if
    /// it can't be completed.
    ///
    /// Memory: one buffer of 1 MiB, and the host copy of a tensor on a device.
    pub(super) fn write(
        &self,
        store: &dyn Store,
        dir: &str,
        marker: &Marker,
        progress: &dyn Observer,
    ) -> Result<(FileEntry, Vec<TensorEntry>), SaveError> {
        let path = join(dir, &self.name);
        let file = store.create(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::AlreadyExists => SaveError::RankWritten {
                rank: self.rank,
                path: store.place(&path),
            },
            _ => failed(store, "create", &path)(source),
        })?;
        let written = self.fill(file, store, &path, marker, progress);
        written.inspect_err(|_| {
            // Reports the first error.
            let _ = store.remove_file(&path);
        })
    }

    fn fill(
        &self,
        mut file: Box<dyn WriteFile>,
        store: &dyn Store,
        path: &str,
        marker: &Marker,
        progress: &dyn Observer,
    ) -> Result<(FileEntry, Vec<TensorEntry>), SaveError> {
        let write = |file: &mut Box<dyn WriteFile>, bytes: &[u8]| {
            file.write_all(bytes).map_err(failed(store, "write", path))
        };
        write(&mut file, &self.header)?;
        let mut at = self.header.len() as u64;
        let mut entries = Vec::with_capacity(self.tensors.len());
        for (tensor, dtype) in &self.tensors {
            let start_bytes = at;
            let mut digests = BlockDigests::new(marker.block_bytes);
            tensor.for_each_piece(|piece| {
                at += piece.len() as u64;
                // One block at a time, so that it is still in the cache when it is written.
                digests.push(piece, |block| {
                    write(&mut file, block)?;
                    progress.advanced(block.len() as u64);
                    Ok(())
                })
            })?;
            entries.push(TensorEntry {
                name: tensor.name.clone(),
                tied: sorted(&tensor.tied),
                role: tensor.role,
                dtype: *dtype,
                shape: tensor.shape.clone(),
                chunks: vec![Chunk {
                    region: tensor.region.clone(),
                    file: self.name.clone(),
                    start_bytes,
                    len_bytes: at - start_bytes,
                    digests: digests.finish(),
                }],
            });
        }
        file.finish().map_err(failed(store, "write", path))?;
        let entry = FileEntry {
            name: self.name.clone(),
            role: self.role,
            rank: self.rank,
            number: self.number,
            size_bytes: at,
            header_bytes: self.header.len() as u64,
            header_digest: Digest::of(&self.header),
        };
        Ok((entry, entries))
    }
}

fn sorted(names: &[String]) -> Vec<String> {
    let mut names = names.to_vec();
    names.sort();
    names
}
