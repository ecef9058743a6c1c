//! Tensors of a checkpoint in pieces that fit the memory.

use tinderbox_fake::Region;

use crate::{LoadError, TensorEntry, layout::pieces, read::whole};

/// The most that is read at once, in bytes: several blocks of digests, since those at both ends of a piece
/// may be read twice.
const PIECE_BYTES: u64 = 8 << 20;

/// Boxes of at most 8 MiB whose elements, one box after the other, are those of the tensor in row-major
/// order; none for an empty tensor.
pub(super) fn pieces_of(tensor: &TensorEntry) -> Result<Vec<Region>, LoadError> {
    Ok(pieces(
        &whole(tensor)?,
        PIECE_BYTES / tensor.dtype.size_bytes(),
    ))
}
