//! Encoding of frames.

use bytes::{BufMut, Bytes, BytesMut};

use super::PRELUDE_BYTES;

/// A frame to send.
///
/// The pieces are shared: [`Bytes::from_owner`] lends the memory of a tensor, which lives until it has been sent.
#[derive(Debug, Clone, Default)]
pub struct Frame {
    /// The header.
    pub header: Vec<u8>,
    /// The pieces.
    pub pieces: Vec<Bytes>,
}

impl Frame {
    /// Returns the encoded frame in slices: everything before the pieces, and the pieces without a copy.
    ///
    /// A [`Decoder`](super::Decoder) refuses a frame of more than 2^32 - 1 bytes of header or pieces.
    pub fn into_slices(self) -> impl Iterator<Item = Bytes> {
        let mut start =
            BytesMut::with_capacity(PRELUDE_BYTES + 8 * self.pieces.len() + self.header.len());
        let most = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        start.put_u32_le(most(self.header.len()));
        start.put_u32_le(most(self.pieces.len()));
        start.put_u64_le(self.pieces.iter().map(|piece| piece.len() as u64).sum());
        for piece in &self.pieces {
            start.put_u64_le(piece.len() as u64);
        }
        start.put_slice(&self.header);
        let pieces = self.pieces.into_iter().filter(|piece| !piece.is_empty());
        std::iter::once(start.freeze()).chain(pieces)
    }
}
