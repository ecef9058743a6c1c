//! One safetensors file of a checkpoint: its header proven against the manifest, its blocks against
//! their digests.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use tinderbox_fake::Region;

use super::plain_file::{check_size, failed, open};
use crate::{
    BlockSize, Digest, HeaderError, LoadError, StoredDType,
    format::{Chunk, FileEntry, Manifest, TensorEntry, chunk_key, decode_header},
    layout::runs,
};

/// An open file whose header is as the manifest says.
#[derive(Debug)]
pub(super) struct ShardFile {
    path: PathBuf,
    file: File,
    block: BlockSize,
}

impl ShardFile {
    /// Opens a file that the manifest lists; checks its size, the digest of its header, and that the
    /// header names exactly the chunks that the manifest puts there.
    ///
    /// Memory: the header, whose size the manifest's proof bounds by the file's.
    pub(super) fn open(
        dir: &Path,
        manifest: &Manifest,
        entry: &FileEntry,
    ) -> Result<Self, LoadError> {
        let path = dir.join(&entry.name);
        check_size(&path, entry.size_bytes)?;
        let mut file = open(&path)?;
        let mut header = Vec::new();
        (&mut file)
            .take(entry.header_bytes)
            .read_to_end(&mut header)
            .map_err(failed("read", &path))?;
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
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Copies the elements that a chunk and a wanted region share to their places in `out`, which is
    /// the wanted region, row-major. Reads the blocks that hold them, whole, and checks each.
    ///
    /// Memory: one block beside `out`. A block that lies in one run is read to its place.
    pub(super) fn read_into(
        &mut self,
        tensor: &TensorEntry,
        chunk: &Chunk,
        wanted: &Region,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        let element = tensor.dtype.size_bytes();
        let block_bytes = self.block.bytes();
        let (mut held, mut held_block) = (Vec::new(), None);
        for run in runs(&chunk.region, wanted) {
            // Byte positions fit: the chunk's and the region's sizes in bytes were proven to.
            let (mut source, end) = (run.source * element, (run.source + run.len) * element);
            let mut target = (run.target * element) as usize;
            while source < end {
                let block = source / block_bytes;
                let block_start = block * block_bytes;
                let block_end = (block_start + block_bytes).min(chunk.len_bytes);
                let stop = end.min(block_end);
                let len = (stop - source) as usize;
                let place = &mut out[target..target + len];
                if source == block_start && stop == block_end {
                    self.read_block(tensor, chunk, block, place)?;
                } else {
                    if held_block != Some(block) {
                        held.resize((block_end - block_start) as usize, 0);
                        self.read_block(tensor, chunk, block, &mut held)?;
                        held_block = Some(block);
                    }
                    let from = (source - block_start) as usize;
                    place.copy_from_slice(&held[from..from + len]);
                }
                (source, target) = (stop, target + len);
            }
        }
        Ok(())
    }

    /// Reads all blocks of a chunk and checks them; keeps nothing.
    pub(super) fn verify(&mut self, tensor: &TensorEntry, chunk: &Chunk) -> Result<(), LoadError> {
        let block_bytes = self.block.bytes();
        let mut held = Vec::new();
        for block in 0..chunk.digests.len() as u64 {
            let len = block_bytes.min(chunk.len_bytes - block * block_bytes);
            held.resize(len as usize, 0);
            self.read_block(tensor, chunk, block, &mut held)?;
            if tensor.dtype == StoredDType::Bool && held.iter().any(|b| *b > 1) {
                return Err(LoadError::TruthValue {
                    path: self.path.clone(),
                    tensor: tensor.name.clone(),
                });
            }
        }
        Ok(())
    }

    fn read_block(
        &mut self,
        tensor: &TensorEntry,
        chunk: &Chunk,
        block: u64,
        into: &mut [u8],
    ) -> Result<(), LoadError> {
        let start_bytes = chunk.start_bytes + block * self.block.bytes();
        self.file
            .seek(SeekFrom::Start(start_bytes))
            .and_then(|_| self.file.read_exact(into))
            .map_err(failed("read", &self.path))?;
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
