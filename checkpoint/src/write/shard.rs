//! The safetensors files of a rank: the assignment of tensors to files, and their bytes.

use std::cmp::Reverse;
use std::io::ErrorKind::AlreadyExists;

use parking_lot::Mutex;
use tinderbox_deferred::Observer;

use super::SaveTensor;
use crate::digest::BlockDigests;
use crate::format::{FileEntry, Marker, TensorEntry, encode_header, names};
use crate::layout::groups;
use crate::store::{Files, join};
use crate::{Chunk, Digest, SaveError, StoredDType};

/// A file to write.
#[derive(Debug)]
pub(super) struct Shard<'a> {
    /// Its entry in the manifest.
    pub(super) entry: FileEntry,
    header: Vec<u8>,
    tensors: Vec<Checked<'a>>,
}

/// A tensor that can be stored, with its type in the file.
type Checked<'a> = (&'a SaveTensor, StoredDType);

/// Divides the tensors of a rank into files by role. Tensors with wide elements come first, so that every tensor is aligned in
/// its file; then they are in the order of their names. Files of a role have approximately equal sizes, within the limit unless
/// a single tensor is larger.
pub(super) fn plan_shards<'a>(
    rank: u32,
    tensors: &'a [SaveTensor],
    limit_bytes: u64,
) -> Result<Vec<Shard<'a>>, SaveError> {
    let limit_bytes = limit_bytes.max(1);
    let checked = tensors.iter().map(|tensor| Ok((tensor, tensor.check()?)));
    let mut checked = checked.collect::<Result<Vec<_>, SaveError>>()?;
    checked.sort_by_key(|(t, dtype)| (t.role, Reverse(dtype.size_bytes()), &t.name, &t.region));
    let mut shards = Vec::new();
    for of_role in checked.chunk_by(|(a, _), (b, _)| a.role == b.role) {
        let total: u64 = of_role.iter().map(bytes_of).sum();
        // The required number of files, of approximately equal sizes.
        let aim = total.div_ceil(total.div_ceil(limit_bytes).max(1)).max(1);
        let is_full = |held: u64, _, at: usize| {
            held >= aim || held.saturating_add(bytes_of(&of_role[at])) > limit_bytes
        };
        for (number, tensors) in (0..).zip(groups(of_role, bytes_of, is_full)) {
            shards.push(shard(rank, number, tensors)?);
        }
    }
    Ok(shards)
}

fn bytes_of((tensor, dtype): &Checked<'_>) -> u64 {
    let elements = tensor.region.num_elements();
    elements.saturating_mul(dtype.size_bytes())
}

fn shard<'a>(rank: u32, number: u32, tensors: &[Checked<'a>]) -> Result<Shard<'a>, SaveError> {
    let role = tensors[0].0.role;
    let name = names::shard_file(role, rank, number);
    let key = |(t, _): &Checked<'_>| names::chunk_key(&t.name, &t.shape, &t.region);
    let keys: Vec<String> = tensors.iter().map(key).collect();
    let listed = keys.iter().zip(tensors);
    let listed = listed.map(|(key, (t, dtype))| (&**key, *dtype, t.region.size()));
    // Hugging Face's loader requires a format in the metadata.
    let header = encode_header(&[("format", "pt")], &listed.collect::<Vec<_>>());
    let header = header.map_err(|source| SaveError::Header {
        file: name.clone(),
        source,
    })?;
    let header_bytes = header.len() as u64;
    Ok(Shard {
        entry: FileEntry {
            name,
            role,
            rank,
            number,
            size_bytes: header_bytes + tensors.iter().map(bytes_of).sum::<u64>(),
            header_bytes,
            header_digest: Digest::of(&header),
        },
        header,
        tensors: tensors.to_vec(),
    })
}

impl Shard<'_> {
    /// Writes the file and makes its bytes durable; returns the entries of its tensors for the manifest. Adds its path to
    /// `created` as soon as the file exists.
    ///
    /// Memory: one buffer of 1 MiB, and the host copy of a tensor on a device.
    pub(super) fn write(
        &self,
        store: &Files,
        dir: &str,
        marker: &Marker,
        progress: &dyn Observer,
        created: &Mutex<Vec<String>>,
    ) -> Result<Vec<TensorEntry>, SaveError> {
        let path = join(dir, &self.entry.name);
        let mut file = store.begin(path.clone()).map_err(|failure| match failure {
            failure if failure.source.kind() == AlreadyExists => SaveError::RankWritten {
                rank: self.entry.rank,
                path: store.place(&path),
            },
            failure => failure.into(),
        })?;
        created.lock().push(path);
        file.write_all(&self.header)?;
        let mut start_bytes = self.entry.header_bytes;
        let mut entries = Vec::with_capacity(self.tensors.len());
        for (tensor, dtype) in &self.tensors {
            let mut digests = BlockDigests::new(marker.block_bytes);
            // Counted, so that the check of the entry finds data whose size does not match its shape.
            let mut len_bytes = 0;
            tensor.for_each_piece(|piece| {
                len_bytes += piece.len() as u64;
                // One block at a time, so that it is still in the cache when it is written.
                digests.push(piece, |block| {
                    file.write_all(block)?;
                    progress.advanced(block.len() as u64);
                    Ok(())
                })
            })?;
            let chunk = Chunk {
                region: tensor.region.clone(),
                file: self.entry.name.clone(),
                start_bytes,
                len_bytes,
                digests: digests.finish(),
            };
            entries.push(tensor.entry(*dtype, chunk));
            start_bytes += len_bytes;
        }
        file.finish()?;
        Ok(entries)
    }
}
