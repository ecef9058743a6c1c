//! Requested regions, and the byte ranges of files that they need. Pure.

use std::ops::Range;

use burn::tensor::DType;
use tinderbox_fake::Region;

use crate::{Chunk, TensorEntry};

/// A requested region.
#[derive(Clone, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) tensor: &'a TensorEntry,
    pub(super) region: Region,
    /// The requested dtype.
    pub(super) dtype: DType,
    /// Whether the two dimensions are swapped.
    pub(super) transposed: bool,
}

/// The identity of a requested region: the name of its tensor, the region, the dtype, and whether it is transposed.
pub(super) type WantedKey = (String, Region, DType, bool);

impl<'a> Wanted<'a> {
    /// Requests the whole tensor, in its own dtype.
    pub(super) fn whole(tensor: &'a TensorEntry) -> Self {
        Self {
            tensor,
            region: tensor.region(),
            dtype: tensor.dtype.burn(),
            transposed: false,
        }
    }

    /// Returns the identity of the region, which does not borrow the tensor.
    pub(super) fn key(&self) -> WantedKey {
        let (name, region) = (self.tensor.name.clone(), self.region.clone());
        (name, region, self.dtype, self.transposed)
    }

    /// Returns the size in memory in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let size = self.dtype.size() as u64;
        self.region.num_elements().saturating_mul(size)
    }

    /// Returns whether the elements are consecutive in the whole tensor.
    pub(super) fn is_rows(&self) -> bool {
        let inner = self.region.size().iter().skip(1);
        !self.transposed && inner.eq(self.tensor.shape.iter().skip(1))
    }
}

/// Returns the indices of the blocks of a chunk that contain an element of a region, as sorted ranges that do not touch. A load
/// reads each block once and completely, because a digest covers a whole block.
pub(super) fn blocks_of(
    chunk: &Chunk,
    region: &Region,
    element_bytes: u64,
    block_bytes: u64,
) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for run in chunk.region.runs(region).filter(|run| run.len > 0) {
        // Positions in bytes fit, because the sizes of chunk and region in bytes were checked.
        let first = run.source * element_bytes / block_bytes;
        let end = ((run.source + run.len) * element_bytes).div_ceil(block_bytes);
        match all.last_mut() {
            Some(last) if first <= last.end => last.end = last.end.max(end),
            _ => all.push(first..end),
        }
    }
    all
}
