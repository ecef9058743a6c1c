//! One safetensors file of a checkpoint: its header proven against the manifest, its blocks against
//! their digests.

use std::{ops::Range, path::PathBuf};

use super::{Checkpoint, checkpoint::failed};
use crate::{
    BlockSize, Digest, HeaderError, LoadError, StoredDType,
    format::{Chunk, FileEntry, Manifest, TensorEntry, chunk_key, decode_header},
    store::{ReadFile, join},
};

/// An open file whose header is as the manifest says.
#[derive(Debug)]
pub(super) struct ShardFile {
    path: PathBuf,
    file: Box<dyn ReadFile>,
    block: BlockSize,
}

impl ShardFile {
    /// Opens a file that the manifest lists; checks its size, the digest of its header, and that the
    /// header names exactly the chunks that the manifest puts there.
    ///
    /// Memory: the header, whose size the manifest's proof bounds by the file's.
    pub(super) fn open(checkpoint: &Checkpoint, entry: &FileEntry) -> Result<Self, LoadError> {
        let (store, manifest) = (checkpoint.store(), checkpoint.manifest());
        let name = join(checkpoint.files_dir(), &entry.name);
        let path = store.place(&name);
        let file = store.open(&name).map_err(failed(store, "open", &name))?;
        if file.bytes() != entry.size_bytes {
            return Err(LoadError::FileSize {
                path,
                expected_bytes: entry.size_bytes,
                found_bytes: file.bytes(),
            });
        }
        // At most the format's limit of 100 MB, as the manifest's proof has shown.
        let mut header = vec![0; entry.header_bytes as usize];
        file.read_exact_at(&mut header, 0)
            .map_err(failed(store, "read", &name))?;
        let found = Digest::of(&header);
        if found != entry.header_digest {
            return Err(LoadError::DamagedFile {
                path,
                what: "header",
                expected: entry.header_digest,
                found,
            });
        }
        check_header(&header, manifest, entry).map_err(|source| LoadError::Header {
            path: path.clone(),
            source,
        })?;
        Ok(Self {
            path,
            file,
            block: manifest.block_bytes,
        })
    }

    /// Where the file is.
    pub(super) fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Bytes that one digest covers.
    pub(super) fn block_bytes(&self) -> u64 {
        self.block.bytes()
    }

    /// The bytes of a block of a chunk, counted from the chunk's first.
    pub(super) fn block_span(&self, chunk: &Chunk, block: u64) -> Range<u64> {
        let start = block * self.block.bytes();
        start..(start + self.block.bytes()).min(chunk.len_bytes)
    }

    /// Reads a whole block of a chunk and checks it.
    pub(super) fn read_block(
        &self,
        tensor: &TensorEntry,
        chunk: &Chunk,
        block: u64,
        into: &mut [u8],
    ) -> Result<(), LoadError> {
        let start_bytes = chunk.start_bytes + block * self.block.bytes();
        self.file
            .read_exact_at(into, start_bytes)
            .map_err(|source| LoadError::Io {
                action: "read",
                path: self.path.clone(),
                source,
            })?;
        let (expected, found) = (chunk.digests[block as usize], Digest::of(into));
        if expected == found {
            return Ok(());
        }
        Err(LoadError::DamagedTensor {
            path: self.path.clone(),
            tensor: tensor.name.clone(),
            start_bytes,
            end_bytes: start_bytes + into.len() as u64,
            expected,
            found,
        })
    }
}

/// Proves that other readers of the file see the tensors that the manifest names.
fn check_header(bytes: &[u8], manifest: &Manifest, entry: &FileEntry) -> Result<(), HeaderError> {
    let header = decode_header(bytes, entry.size_bytes)?;
    let of_file = |t: &TensorEntry| t.role == entry.role;
    let mut expected: Vec<(u64, String, StoredDType, &[u64])> = manifest
        .tensors
        .iter()
        .filter(|t| of_file(t))
        .flat_map(|t| t.chunks.iter().map(move |c| (t, c)))
        .filter(|(_, c)| c.file == entry.name)
        .map(|(t, c)| {
            let key = chunk_key(&t.name, &t.shape, &c.region);
            (c.start_bytes, key, t.dtype, c.region.size())
        })
        .collect();
    expected.sort();
    // Empty tensors share their start with others, so the names are a part of the order.
    let mut found: Vec<(u64, String, StoredDType, &[u64])> = header
        .tensors
        .iter()
        .map(|t| {
            let start = header.data_start_bytes + t.start_bytes;
            (start, t.name.clone(), t.dtype, &t.shape[..])
        })
        .collect();
    found.sort();
    let differs = expected.len() != found.len() || header.data_start_bytes != entry.header_bytes;
    let wrong = expected.iter().zip(&found).find(|(e, f)| e != f);
    match (wrong, differs) {
        (Some((expected, _)), _) => Err(HeaderError::NotAsListed {
            tensor: expected.1.clone(),
        }),
        (None, true) => Err(HeaderError::NotAsListed {
            tensor: String::new(),
        }),
        (None, false) => Ok(()),
    }
}
