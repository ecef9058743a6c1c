//! Division of a checkpoint's tensors into pieces that fit in memory.

use tinderbox_fake::Region;

use crate::{LoadError, TensorEntry, layout::pieces, read::whole};

/// Maximum size of one read in bytes: several digest blocks, because the first and the last block of a piece
/// may be read twice.
const PIECE_BYTES: u64 = 8 << 20;

/// Divides a tensor into boxes of at most 8 MiB whose concatenated elements are those of the tensor in
/// row-major order; empty for an empty tensor.
pub(super) fn pieces_of(tensor: &TensorEntry) -> Result<Vec<Region>, LoadError> {
    Ok(pieces(
        &whole(tensor)?,
        PIECE_BYTES / tensor.dtype.size_bytes(),
    ))
}
