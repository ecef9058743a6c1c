//! A safetensors file of a checkpoint: its header is validated against the manifest, its blocks against their digests.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::transfer::InvalidValue;
use crate::error::short;
use crate::format::{Chunk, FileEntry, PAGE_BYTES, TensorEntry, decode_header, names};
use crate::store::ReadFile;
use crate::{BlockSize, Digest, HeaderError, LoadError, StoreError, StoredDType};

/// An open file whose header matches the manifest.
#[derive(Debug)]
pub(super) struct ShardFile {
    pub(super) path: PathBuf,
    file: Box<dyn ReadFile>,
    block: BlockSize,
    /// Whether its blocks have digests.
    digests: bool,
}

impl ShardFile {
    /// Wraps an open file. A file of another program has no digests of its blocks.
    pub(super) fn new(path: PathBuf, file: Box<dyn ReadFile>, digests: Option<BlockSize>) -> Self {
        Self {
            path,
            file,
            block: digests.unwrap_or_default(),
            digests: digests.is_some(),
        }
    }

    /// Reads the header, with the length before it, and checks its digest.
    pub(super) fn header(&self, entry: &FileEntry) -> Result<Vec<u8>, LoadError> {
        // At most the format's limit of 100 MB, as checked by the validation of the manifest.
        let mut header = vec![0; entry.header_bytes as usize];
        let read = self.file.read_exact_at(&mut header, 0);
        read.map_err(|source| self.unreadable(source))?;
        check_digest(&header, entry.header_digest, "header", &self.path)?;
        Ok(header)
    }

    /// Returns a chunk in the file.
    pub(super) fn chunk<'a>(&'a self, tensor: &'a TensorEntry, chunk: &'a Chunk) -> OpenChunk<'a> {
        OpenChunk {
            shard: self,
            tensor,
            chunk,
        }
    }

    fn unreadable(&self, source: io::Error) -> LoadError {
        let source = match source.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(
                source.kind(),
                "the file is damaged: it ends early, and had its full size when it was opened",
            ),
            _ => source,
        };
        LoadError::Io(StoreError {
            action: "read",
            path: self.path.clone(),
            source,
        })
    }
}

/// Checks the digest of bytes of a file outside the tensors.
pub(super) fn check_digest(
    bytes: &[u8],
    expected: Digest,
    what: &'static str,
    path: &Path,
) -> Result<(), LoadError> {
    match Digest::of(bytes) {
        found if found == expected => Ok(()),
        found => Err(LoadError::DamagedFile {
            path: path.to_owned(),
            what,
            expected,
            found,
        }),
    }
}

/// The memory of a thread for the block that it reads.
#[derive(derive_more::Debug, Default)]
pub(super) struct Held {
    #[debug(skip)]
    pub(super) memory: Vec<u8>,
    /// The position of the block in the memory.
    pub(super) range: Range<usize>,
    /// Memory to transpose.
    #[debug(skip)]
    pub(super) scratch: Vec<u8>,
    /// Whether the cache of the system is bypassed.
    pub(super) uncached: bool,
}

impl Held {
    /// Returns the block that was read.
    pub(super) fn block(&self) -> &[u8] {
        &self.memory[self.range.clone()]
    }

    /// Reads bytes from an offset of a file.
    fn read(&mut self, file: &dyn ReadFile, start: u64, bytes: usize) -> io::Result<()> {
        if self.uncached {
            // The pages that contain the bytes.
            let before = (start % PAGE_BYTES as u64) as usize;
            let all = (before + bytes).next_multiple_of(PAGE_BYTES);
            self.grow(all + PAGE_BYTES);
            let first = self.memory.as_ptr().align_offset(PAGE_BYTES);
            let pages = &mut self.memory[first..first + all];
            if file.read_uncached(pages, start - before as u64, before + bytes)? {
                self.range = first + before..first + before + bytes;
                return Ok(());
            }
        }
        self.grow(bytes);
        self.range = 0..bytes;
        file.read_exact_at(&mut self.memory[..bytes], start)
    }

    fn grow(&mut self, bytes: usize) {
        if self.memory.len() < bytes {
            self.memory.resize(bytes, 0);
        }
    }
}

/// A chunk in an open file. Positions are relative to the chunk's first byte.
#[derive(Clone, Copy)]
pub(super) struct OpenChunk<'a> {
    shard: &'a ShardFile,
    pub(super) tensor: &'a TensorEntry,
    pub(super) chunk: &'a Chunk,
}

impl OpenChunk<'_> {
    /// Returns the byte range to read for the beginning of a range of bytes: a whole block, or, if nothing else is needed and
    /// blocks have no digests, the bytes themselves, at most as many as a block has.
    pub(super) fn span(&self, range: Range<u64>, is_alone: bool) -> Range<u64> {
        let block = self.shard.block.bytes();
        if is_alone && !self.shard.digests {
            return range.start..range.end.min(range.start + block);
        }
        self.block(range.start / block)
    }

    /// Returns the byte range of a block.
    pub(super) fn block(&self, block: u64) -> Range<u64> {
        let bytes = self.shard.block.bytes();
        block * bytes..((block + 1) * bytes).min(self.chunk.len_bytes)
    }

    /// Returns the byte range of each block that has a digest.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Range<u64>> {
        (0..self.chunk.digests.len() as u64).map(|block| self.block(block))
    }

    /// Fills memory from a position and checks the digest of the block, if it has one. Returns `false` if a read around the
    /// cache of the system is not possible for this memory.
    pub(super) fn read(
        &self,
        start: u64,
        into: &mut [u8],
        uncached: bool,
    ) -> Result<bool, LoadError> {
        let (file, start_bytes) = (&self.shard.file, self.chunk.start_bytes + start);
        let read = match uncached {
            true => file.read_uncached(into, start_bytes, into.len()),
            false => file.read_exact_at(into, start_bytes).map(|()| true),
        };
        let is_read = read.map_err(|source| self.shard.unreadable(source))?;
        if is_read {
            self.check(start, into)?;
        }
        Ok(is_read)
    }

    /// Reads a span of at most a block to the memory of a thread.
    pub(super) fn hold(&self, span: Range<u64>, held: &mut Held) -> Result<(), LoadError> {
        let (file, start_bytes) = (&*self.shard.file, self.chunk.start_bytes + span.start);
        let read = held.read(file, start_bytes, (span.end - span.start) as usize);
        read.map_err(|source| self.shard.unreadable(source))?;
        self.check(span.start, held.block())
    }

    /// Checks the digest of a block, if it has one.
    fn check(&self, start: u64, bytes: &[u8]) -> Result<(), LoadError> {
        if !self.shard.digests {
            return Ok(());
        }
        let block = start / self.shard.block.bytes();
        let (expected, found) = (self.chunk.digests[block as usize], Digest::of(bytes));
        if expected == found {
            return Ok(());
        }
        let start_bytes = self.chunk.start_bytes + start;
        Err(LoadError::DamagedTensor {
            path: self.shard.path.clone(),
            tensor: self.tensor.name.clone(),
            start_bytes,
            end_bytes: start_bytes + bytes.len() as u64,
            expected,
            found,
        })
    }

    /// Returns the error for a value that the requested dtype does not have.
    pub(super) fn invalid(&self, value: InvalidValue) -> LoadError {
        let (path, tensor) = (self.shard.path.clone(), self.tensor.name.clone());
        match value {
            InvalidValue::Boolean => LoadError::InvalidBoolean { path, tensor },
            InvalidValue::Overflow(value) => LoadError::Overflow {
                path,
                tensor,
                value,
                stored: self.tensor.dtype,
            },
        }
    }
}

/// Checks that the header of a file lists exactly the chunks that the manifest assigns to the file, so that other readers see
/// the same tensors.
pub(super) fn check_header<'a>(
    bytes: &[u8],
    contents: impl Iterator<Item = (&'a TensorEntry, &'a Chunk)>,
    entry: &FileEntry,
) -> Result<(), HeaderError> {
    let header = decode_header(bytes, entry.size_bytes)?;
    // Empty tensors can share their start with others, so the names are part of the order.
    type Listed<'a> = BTreeSet<(u64, String, StoredDType, &'a [u64])>;
    let expected = contents.map(|(t, c)| {
        let key = names::chunk_key(&t.name, &t.shape, &c.region);
        (c.start_bytes, key, t.dtype, c.region.size())
    });
    let found = header.tensors.iter().map(|t| {
        let start = header.data_start_bytes + t.start_bytes;
        (start, t.name.clone(), t.dtype, &t.shape[..])
    });
    let (expected, found): (Listed<'_>, Listed<'_>) = (expected.collect(), found.collect());
    // A tensor of the manifest first, because users know it.
    let wrong = expected.difference(&found).next();
    match wrong.or_else(|| found.difference(&expected).next()) {
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
