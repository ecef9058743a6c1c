//! Decoding of frames.

use std::collections::VecDeque;

use bytes::Buf;
use thiserror::Error;

use super::{Buffer, PRELUDE_BYTES, Received};

/// The largest frame that is read.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) header_bytes: u32,
    pub(super) pieces: u32,
    /// The bytes of all pieces together.
    pub(super) bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_bytes: 16 << 20,
            pieces: 1 << 16,
            bytes: 64 << 30,
        }
    }
}

/// Bytes that are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A number is above its limit.
    #[error("a frame announces {found} {what}, the limit is {limit}")]
    TooLarge {
        /// The counted thing, such as bytes of header.
        what: &'static str,
        /// The announced number.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The sum of the lengths of the pieces is not the announced sum.
    #[error("a frame announces {announced} bytes of pieces, and pieces of {found} bytes")]
    Lengths {
        /// The bytes of all pieces.
        announced: u64,
        /// The sum of the lengths.
        found: u64,
    },
    /// The bytes end within a frame.
    #[error("the bytes end within a frame, {missing} bytes too early")]
    Truncated {
        /// The least number of missing bytes.
        missing: u64,
    },
}

/// Reads frames from slices of any lengths: of at most 16 MiB of header, 65,536 pieces, and 64 GiB of pieces.
///
/// After an error its position is unknown, and it returns the same error for all further bytes.
#[derive(Debug, Default)]
pub struct Decoder {
    pub(super) limits: Limits,
    /// The bytes of a frame before its pieces, as far as they have arrived.
    start: Vec<u8>,
    /// The number of bytes between the prelude and the pieces; 0 until the prelude has arrived.
    between_bytes: usize,
    /// The length of each piece, after all bytes before the pieces have arrived.
    lengths: Vec<u64>,
    /// The pieces that have arrived. The last one may be incomplete.
    pieces: Vec<Buffer>,
    error: Option<FrameError>,
    done: VecDeque<Received>,
}

/// The memory that is reserved for a piece before its first byte arrives. The memory of a larger piece grows as it arrives,
/// so that a frame that announces many bytes and sends none costs little.
const FIRST_BYTES: u64 = 64 << 20;

impl Decoder {
    /// Reads bytes. Complete frames are then returned by [`next_frame`](Self::next_frame).
    ///
    /// # Errors
    ///
    /// When the bytes are not a frame, or the frame is larger than the limits.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), FrameError> {
        while !bytes.is_empty() && self.error.is_none() {
            self.error = self.read(&mut bytes).err();
        }
        self.error.clone().map_or(Ok(()), Err)
    }

    /// Returns the next complete frame.
    pub fn next_frame(&mut self) -> Option<Received> {
        self.done.pop_front()
    }

    /// Checks that the bytes end after a frame.
    ///
    /// # Errors
    ///
    /// When they end within a frame, or there was an error.
    pub fn end(&self) -> Result<(), FrameError> {
        self.error.clone().map_or(Ok(()), Err)?;
        if self.start.is_empty() {
            return Ok(());
        }
        let (.., sum) = self.prelude().unwrap_or_default();
        let found: u64 = self.pieces.iter().map(|piece| piece.len() as u64).sum();
        let missing = (self.start_bytes() - self.start.len()) as u64 + sum - found;
        Err(FrameError::Truncated { missing })
    }

    /// Returns the number of bytes before the pieces, as far as it is known.
    fn start_bytes(&self) -> usize {
        PRELUDE_BYTES + self.between_bytes
    }

    /// Reads the bytes that belong to the current part of the frame.
    fn read(&mut self, bytes: &mut &[u8]) -> Result<(), FrameError> {
        let count = self.pieces.len();
        if let Some(piece) = self.pieces.last_mut() {
            // The sum of all lengths is below the limit, which is memory that this process may use.
            let length = usize::try_from(self.lengths[count - 1]).unwrap_or(usize::MAX);
            piece.extend(take(bytes, length - piece.len()));
        } else {
            let left = self.start_bytes() - self.start.len();
            self.start.extend_from_slice(take(bytes, left));
            if self.start.len() == PRELUDE_BYTES {
                self.between_bytes = self.check()?;
            }
            if self.start.len() < self.start_bytes() {
                return Ok(());
            }
            self.read_lengths()?;
        }
        self.finish_pieces();
        Ok(())
    }

    /// Returns the numbers of the prelude: bytes of header, pieces, bytes of all pieces.
    fn prelude(&self) -> Option<(u32, u32, u64)> {
        let mut start = self.start.get(..PRELUDE_BYTES)?;
        Some((start.get_u32_le(), start.get_u32_le(), start.get_u64_le()))
    }

    /// Checks the prelude. Returns the bytes between it and the pieces.
    fn check(&self) -> Result<usize, FrameError> {
        let (header, pieces, sum) = self.prelude().unwrap_or_default();
        let limits = &self.limits;
        let numbers = [
            ("bytes of header", header.into(), limits.header_bytes.into()),
            ("pieces", pieces.into(), limits.pieces.into()),
            ("bytes of pieces", sum, limits.bytes),
        ];
        match numbers.into_iter().find(|(_, found, limit)| found > limit) {
            Some((what, found, limit)) => Err(FrameError::TooLarge { what, found, limit }),
            None => Ok(8 * pieces as usize + header as usize),
        }
    }

    /// Reads the lengths of the pieces.
    fn read_lengths(&mut self) -> Result<(), FrameError> {
        let (_, pieces, announced) = self.prelude().unwrap_or_default();
        let (lengths, _) = self.start[PRELUDE_BYTES..].as_chunks();
        let lengths = lengths.iter().take(pieces as usize);
        self.lengths = lengths.map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let found = self.lengths.iter().copied().fold(0, u64::saturating_add);
        match found == announced {
            true => Ok(()),
            false => Err(FrameError::Lengths { announced, found }),
        }
    }

    /// Begins the next piece if the last one is complete, and ends the frame after all pieces.
    fn finish_pieces(&mut self) {
        loop {
            let count = self.pieces.len();
            if let Some(last) = self.pieces.last()
                && (last.len() as u64) < self.lengths[count - 1]
            {
                return;
            }
            let Some(length) = self.lengths.get(count) else {
                let header = std::mem::take(&mut self.start).split_off(PRELUDE_BYTES + 8 * count);
                let pieces = std::mem::take(&mut self.pieces);
                self.done.push_back(Received { header, pieces });
                self.between_bytes = 0;
                return;
            };
            let first = (*length).min(FIRST_BYTES) as usize;
            self.pieces.push(Buffer::with_capacity(first));
        }
    }
}

/// Takes up to `most` bytes from the front.
pub(crate) fn take<'a>(bytes: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (now, later) = bytes.split_at(most.min(bytes.len()));
    *bytes = later;
    now
}
