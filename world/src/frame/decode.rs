//! Frames on their way in.

use std::collections::VecDeque;

use bytes::Buf;
use thiserror::Error;

use super::{Buffer, PRELUDE_BYTES, Received};

/// The largest frames that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a header.
    pub header_bytes: u32,
    /// The number of pieces.
    pub pieces: u32,
    /// Bytes of all pieces together.
    pub bytes: u64,
}

impl Default for Limits {
    /// 16 MiB of header, 65,536 pieces, 64 GiB.
    fn default() -> Self {
        Self {
            header_bytes: 16 << 20,
            pieces: 1 << 16,
            bytes: 64 << 30,
        }
    }
}

/// Bytes that are no frame.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A number is above its limit.
    #[error("a frame announces {found} {what}, the limit is {limit}")]
    TooLarge {
        /// What is announced.
        what: &'static str,
        /// The announced number.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The lengths of the pieces do not add up to the length of all together.
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
        /// The bytes that are missing at least.
        missing: u64,
    },
}

/// Reads frames from slices of any lengths.
///
/// After an error it is at an unknown position, and returns the same error for all further bytes.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    /// The bytes of a frame before its pieces, as far as they were read.
    start: Vec<u8>,
    /// How many bytes are before the pieces: the prelude, until it says how many follow.
    start_bytes: usize,
    /// The length of each piece, when all bytes before the pieces were read.
    lengths: Vec<u64>,
    /// The pieces that were read, of which the last may be incomplete.
    pieces: Vec<Buffer>,
    error: Option<FrameError>,
    done: VecDeque<Received>,
}

/// Memory that is reserved for a piece before its first byte arrives. A larger piece is given more as it arrives, so that
/// a frame that announces much and sends nothing costs little.
const FIRST_BYTES: u64 = 64 << 20;

impl Decoder {
    /// Creates a decoder at the beginning of a frame.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            start: Vec::new(),
            start_bytes: PRELUDE_BYTES,
            lengths: Vec::new(),
            pieces: Vec::new(),
            error: None,
            done: VecDeque::new(),
        }
    }

    /// Reads bytes. Complete frames are then returned by [`next_frame`](Self::next_frame).
    ///
    /// # Errors
    ///
    /// When the bytes are no frame, or one beyond the limits.
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

    /// Checks that the bytes may end here.
    ///
    /// # Errors
    ///
    /// When they end within a frame, or there was an error.
    pub fn end(&self) -> Result<(), FrameError> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        if self.start.is_empty() {
            return Ok(());
        }
        let (.., sum) = self.prelude().unwrap_or_default();
        let found: u64 = self.pieces.iter().map(|piece| piece.len() as u64).sum();
        let missing = (self.start_bytes - self.start.len()) as u64 + sum - found;
        Err(FrameError::Truncated { missing })
    }

    /// Reads what the part of the frame at this position needs.
    fn read(&mut self, bytes: &mut &[u8]) -> Result<(), FrameError> {
        let count = self.pieces.len();
        if let Some(piece) = self.pieces.last_mut() {
            // The sum of all lengths is below the limit, which is memory that this process may use.
            let length = usize::try_from(self.lengths[count - 1]).unwrap_or(usize::MAX);
            piece.extend(take(bytes, length - piece.len()));
        } else {
            let left = self.start_bytes - self.start.len();
            self.start.extend_from_slice(take(bytes, left));
            if self.start.len() == PRELUDE_BYTES {
                self.start_bytes += self.check()?;
            }
            if self.start.len() < self.start_bytes {
                return Ok(());
            }
            self.read_lengths()?;
        }
        self.finish_pieces();
        Ok(())
    }

    /// Returns the numbers of the prelude: bytes of header, pieces, bytes of all pieces.
    fn prelude(&self) -> Option<(u32, u32, u64)> {
        let mut prelude = self.start.get(..PRELUDE_BYTES)?;
        Some((
            prelude.get_u32_le(),
            prelude.get_u32_le(),
            prelude.get_u64_le(),
        ))
    }

    /// Checks the prelude. Returns the bytes between it and the pieces.
    fn check(&self) -> Result<usize, FrameError> {
        let (header, pieces, sum) = self.prelude().unwrap_or_default();
        let limits = self.limits;
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

    /// Begins the next piece if the last one is complete, and ends the frame after all.
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
                self.start_bytes = PRELUDE_BYTES;
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
