//! Which bytes of which files answer a request. Pure.

use std::ops::Range;

use tinderbox_fake::Region;

use crate::{Chunk, layout::runs};

/// The blocks of a chunk, by number, that hold an element of a region: ranges in order, none touching
/// the next. A load reads each of them once, whole, because a digest covers a whole block.
pub(super) fn blocks_of(
    chunk: &Chunk,
    region: &Region,
    element_bytes: u64,
    block_bytes: u64,
) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for run in runs(&chunk.region, region).filter(|run| run.len > 0) {
        // Positions in bytes fit: the sizes of chunk and region in bytes were proven to.
        let first = run.source * element_bytes / block_bytes;
        let end = ((run.source + run.len) * element_bytes).div_ceil(block_bytes);
        match all.last_mut() {
            Some(last) if first <= last.end => last.end = last.end.max(end),
            _ => all.push(first..end),
        }
    }
    all
}

/// The bytes of a range of blocks, counted from the chunk's first.
pub(super) fn span_of(chunk: &Chunk, blocks: &Range<u64>, block_bytes: u64) -> Range<u64> {
    blocks.start * block_bytes..(blocks.end * block_bytes).min(chunk.len_bytes)
}
