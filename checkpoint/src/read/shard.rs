//! One safetensors file of a checkpoint: its header is validated against the manifest, its blocks against
//! their digests.

use std::{
    collections::BTreeSet,
    io,
    ops::Range,
    path::{Path, PathBuf},
};

use super::failed;
use crate::{
    BlockSize, Digest, HeaderError, LoadError, StoredDType,
    error::short,
    format::{Chunk, FileEntry, TensorEntry, chunk_key, decode_header},
    store::{ReadFile, Store, join},
};

/// An open file whose header matches the manifest.
#[derive(Debug)]
pub(super) struct ShardFile {
    pub(super) path: PathBuf,
    file: Box<dyn ReadFile>,
    pub(super) block: BlockSize,
    /// Whether its blocks have digests.
    digests: bool,
}

impl ShardFile {
    /// Wraps a file of another program, whose header was validated and whose blocks have no digests.
    pub(super) fn plain(path: PathBuf, file: Box<dyn ReadFile>) -> Self {
        Self {
            path,
            file,
            block: BlockSize::default(),
            digests: false,
        }
    }

    /// Opens a file listed in the manifest, and returns it with its header; checks its size and the digest of its header.
    ///
    /// Memory: the header, whose size is bounded by the size of the file.
    pub(super) fn open(
        store: &dyn Store,
        dir: &str,
        entry: &FileEntry,
        block: BlockSize,
    ) -> Result<(Self, Vec<u8>), LoadError> {
        let name = join(dir, &entry.name);
        let path = store.place(&name);
        let file = store.open(&name).map_err(failed(store, "open", &name))?;
        if file.bytes() != entry.size_bytes {
            return Err(LoadError::FileSize {
                path,
                expected_bytes: entry.size_bytes,
                found_bytes: file.bytes(),
            });
        }
        let header = read_header(&*file, &path, entry)?;
        let shard = Self {
            path,
            file,
            block,
            digests: true,
        };
        Ok((shard, header))
    }

    /// Reads the header again and checks its digest.
    pub(super) fn header(&self, entry: &FileEntry) -> Result<Vec<u8>, LoadError> {
        read_header(&*self.file, &self.path, entry)
    }

    /// Returns the byte range to read for the beginning of a range of bytes, relative to the chunk's first byte: a whole block, or at
    /// most the bytes of one if nothing else is needed and blocks have no digests.
    pub(super) fn span(&self, chunk: &Chunk, range: Range<u64>, is_alone: bool) -> Range<u64> {
        let block = self.block.bytes();
        if is_alone && !self.digests {
            return range.start..range.end.min(range.start + block);
        }
        let start = range.start / block * block;
        start..(start + block).min(chunk.len_bytes)
    }

    /// Returns the byte range of each block of a chunk that has a digest.
    pub(super) fn blocks(&self, chunk: &Chunk) -> impl Iterator<Item = Range<u64>> {
        let blocks = 0..chunk.digests.len() as u64;
        blocks.map(|block| {
            let start = block * self.block.bytes();
            self.span(chunk, start..start, false)
        })
    }

    /// Reads a span of a chunk and checks its digest, if it has one.
    pub(super) fn read_block(
        &self,
        tensor: &TensorEntry,
        chunk: &Chunk,
        start: u64,
        into: &mut [u8],
    ) -> Result<(), LoadError> {
        let read = self.file.read_exact_at(into, chunk.start_bytes + start);
        read.map_err(|source| self.unreadable(source))?;
        self.check_block(tensor, chunk, start, into)
    }

    /// As [`read_block`](Self::read_block), around the cache of the system; returns `false` where that is not possible for this
    /// memory.
    pub(super) fn read_block_direct(
        &self,
        tensor: &TensorEntry,
        chunk: &Chunk,
        start: u64,
        into: &mut [u8],
    ) -> Result<bool, LoadError> {
        let read = self.file.read_direct(into, chunk.start_bytes + start);
        let is_read = read.map_err(|source| self.unreadable(source))?;
        if is_read {
            self.check_block(tensor, chunk, start, into)?;
        }
        Ok(is_read)
    }

    /// As [`read_block`](Self::read_block), around the cache of the system; returns where in `scratch` the span is.
    pub(super) fn read_block_uncached(
        &self,
        tensor: &TensorEntry,
        chunk: &Chunk,
        span: &Range<u64>,
        scratch: &mut Vec<u8>,
    ) -> Result<Range<usize>, LoadError> {
        // At most the size of a block.
        let bytes = (span.end - span.start) as usize;
        let start_bytes = chunk.start_bytes + span.start;
        let range = self.file.read_uncached(scratch, start_bytes, bytes);
        let range = range.map_err(|source| self.unreadable(source))?;
        self.check_block(tensor, chunk, span.start, &scratch[range.clone()])?;
        Ok(range)
    }

    fn unreadable(&self, source: io::Error) -> LoadError {
        LoadError::Io {
            action: "read",
            path: self.path.clone(),
            source,
        }
    }

    /// Checks the digest of a block, if it has one.
    fn check_block(
        &self,
        tensor: &TensorEntry,
        chunk: &Chunk,
        start: u64,
        bytes: &[u8],
    ) -> Result<(), LoadError> {
        if !self.digests {
            return Ok(());
        }
        let block = start / self.block.bytes();
        let (expected, found) = (chunk.digests[block as usize], Digest::of(bytes));
        if expected == found {
            return Ok(());
        }
        let start_bytes = chunk.start_bytes + start;
        Err(LoadError::DamagedTensor {
            path: self.path.clone(),
            tensor: tensor.name.clone(),
            start_bytes,
            end_bytes: start_bytes + bytes.len() as u64,
            expected,
            found,
        })
    }
}

/// Reads the header of a file, with the length before it, and checks its digest.
fn read_header(file: &dyn ReadFile, path: &Path, entry: &FileEntry) -> Result<Vec<u8>, LoadError> {
    // At most the format's limit of 100 MB, as checked by the validation of the manifest.
    let mut header = vec![0; entry.header_bytes as usize];
    let read = file.read_exact_at(&mut header, 0);
    read.map_err(|source| LoadError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    match Digest::of(&header) {
        found if found == entry.header_digest => Ok(header),
        found => Err(LoadError::DamagedFile {
            path: path.to_owned(),
            what: "header",
            expected: entry.header_digest,
            found,
        }),
    }
}

/// Checks that the header of a file lists exactly the chunks that the manifest assigns to the file, so that other readers see the
/// same tensors.
pub(super) fn check_header<'a>(
    bytes: &[u8],
    contents: impl Iterator<Item = (&'a TensorEntry, &'a Chunk)>,
    entry: &FileEntry,
) -> Result<(), HeaderError> {
    let header = decode_header(bytes, entry.size_bytes)?;
    // Empty tensors can share their start with others, so the names are part of the order.
    let expected: BTreeSet<(u64, String, StoredDType, &[u64])> = contents
        .map(|(t, c)| {
            let key = chunk_key(&t.name, &t.shape, &c.region);
            (c.start_bytes, key, t.dtype, c.region.size())
        })
        .collect();
    let found: BTreeSet<(u64, String, StoredDType, &[u64])> = header
        .tensors
        .iter()
        .map(|t| {
            let start = header.data_start_bytes + t.start_bytes;
            (start, t.name.clone(), t.dtype, &t.shape[..])
        })
        .collect();
    let mut wrong = expected
        .difference(&found)
        .chain(found.difference(&expected));
    match wrong.next() {
        Some((_, tensor, ..)) => Err(HeaderError::NotAsListed {
            tensor: short(tensor),
        }),
        None if header.data_start_bytes != entry.header_bytes => Err(HeaderError::PastEnd {
            header_bytes: header.data_start_bytes,
            file_bytes: entry.header_bytes,
        }),
        None => Ok(()),
    }
}
