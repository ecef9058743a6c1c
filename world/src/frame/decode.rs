//! Frames on their way in.

use std::collections::VecDeque;

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
    part: Part,
    done: VecDeque<Received>,
}

/// What is read at present.
#[derive(Debug)]
enum Part {
    /// The prelude, and then the lengths.
    Start(Vec<u8>, usize),
    Header {
        header: Vec<u8>,
        length: usize,
        lengths: VecDeque<u64>,
    },
    Pieces {
        frame: Received,
        /// The lengths of the pieces that are not complete.
        lengths: VecDeque<u64>,
    },
    Failed(FrameError),
}

impl Decoder {
    /// Creates a decoder at the beginning of a frame.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            part: Part::start(),
            done: VecDeque::new(),
        }
    }

    /// Reads bytes. Complete frames are then returned by [`next_frame`](Self::next_frame).
    ///
    /// # Errors
    ///
    /// When the bytes are no frame, or one beyond the limits.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), FrameError> {
        while !bytes.is_empty() {
            let part = std::mem::replace(&mut self.part, Part::start());
            let read = self.read(part, &mut bytes);
            self.part = read.unwrap_or_else(Part::Failed);
            if let Part::Failed(error) = &self.part {
                return Err(error.clone());
            }
        }
        Ok(())
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
        let missing = match &self.part {
            Part::Start(bytes, _) if bytes.is_empty() => return Ok(()),
            Part::Failed(error) => return Err(error.clone()),
            Part::Start(bytes, length) => (length - bytes.len()) as u64,
            Part::Header {
                header,
                length,
                lengths,
            } => (length - header.len()) as u64 + lengths.iter().sum::<u64>(),
            Part::Pieces { frame, lengths } => {
                let last = frame.pieces.last().map_or(0, Buffer::len);
                lengths.iter().sum::<u64>() - last as u64
            }
        };
        Err(FrameError::Truncated { missing })
    }

    /// Reads what a part needs, and returns the part that is next.
    fn read(&mut self, part: Part, bytes: &mut &[u8]) -> Result<Part, FrameError> {
        match part {
            Part::Start(mut start, length) => {
                take(bytes, length - start.len(), |now| {
                    start.extend_from_slice(now)
                });
                if start.len() < length {
                    return Ok(Part::Start(start, length));
                }
                let (header, pieces, sum) = numbers(&start);
                if start.len() == PRELUDE_BYTES {
                    self.check(header, pieces, sum)?;
                    if pieces > 0 {
                        // At most as many as the limit.
                        let length = PRELUDE_BYTES + 8 * pieces as usize;
                        return Ok(Part::Start(start, length));
                    }
                }
                let (lengths, _) = start[PRELUDE_BYTES..].as_chunks();
                let lengths: VecDeque<u64> =
                    lengths.iter().map(|l| u64::from_le_bytes(*l)).collect();
                let found = lengths
                    .iter()
                    .fold(0, |sum: u64, length| sum.saturating_add(*length));
                if found != sum {
                    let announced = sum;
                    return Err(FrameError::Lengths { announced, found });
                }
                Ok(self.header(
                    Vec::with_capacity(header as usize),
                    header as usize,
                    lengths,
                ))
            }
            Part::Header {
                mut header,
                length,
                lengths,
            } => {
                take(bytes, length - header.len(), |now| {
                    header.extend_from_slice(now)
                });
                Ok(self.header(header, length, lengths))
            }
            Part::Pieces {
                mut frame,
                mut lengths,
            } => {
                if let (Some(length), Some(piece)) = (lengths.front(), frame.pieces.last_mut()) {
                    // The sum of all lengths is below the limit, which is memory that this process may use.
                    let left = usize::try_from(*length).unwrap_or(usize::MAX) - piece.len();
                    take(bytes, left, |now| piece.extend(now));
                    if piece.len() as u64 == *length {
                        lengths.pop_front();
                        return Ok(self.next_piece(frame, lengths));
                    }
                }
                Ok(Part::Pieces { frame, lengths })
            }
            Part::Failed(error) => Err(error),
        }
    }

    fn check(&self, header: u32, pieces: u32, sum: u64) -> Result<(), FrameError> {
        let Limits {
            header_bytes,
            pieces: most,
            bytes,
        } = self.limits;
        let numbers = [
            (
                "bytes of header",
                u64::from(header),
                u64::from(header_bytes),
            ),
            ("pieces", u64::from(pieces), u64::from(most)),
            ("bytes of pieces", sum, bytes),
        ];
        match numbers.into_iter().find(|(_, found, limit)| found > limit) {
            Some((what, found, limit)) => Err(FrameError::TooLarge { what, found, limit }),
            None => Ok(()),
        }
    }

    /// Continues after a part of the header.
    fn header(&mut self, header: Vec<u8>, length: usize, lengths: VecDeque<u64>) -> Part {
        if header.len() < length {
            return Part::Header {
                header,
                length,
                lengths,
            };
        }
        let pieces = Vec::with_capacity(lengths.len());
        self.next_piece(Received { header, pieces }, lengths)
    }

    /// Begins the next piece that has bytes, or ends the frame.
    fn next_piece(&mut self, mut frame: Received, lengths: VecDeque<u64>) -> Part {
        let mut lengths = lengths;
        while lengths.front() == Some(&0) {
            lengths.pop_front();
            frame.pieces.push(Buffer::default());
        }
        let Some(length) = lengths.front() else {
            self.done.push_back(frame);
            return Part::start();
        };
        let bytes = usize::try_from(*length).unwrap_or(usize::MAX);
        frame
            .pieces
            .push(Buffer::with_capacity(bytes.min(FIRST_BYTES)));
        Part::Pieces { frame, lengths }
    }
}

/// Memory that is reserved for a piece before its first byte arrives. A larger piece is given more as it arrives, so that
/// a frame that announces much and sends nothing costs little.
const FIRST_BYTES: usize = 64 << 20;

impl Part {
    const fn start() -> Self {
        Self::Start(Vec::new(), PRELUDE_BYTES)
    }
}

/// Returns the numbers of a prelude: bytes of header, pieces, bytes of all pieces.
fn numbers(start: &[u8]) -> (u32, u32, u64) {
    let mut prelude = [0; PRELUDE_BYTES];
    prelude.copy_from_slice(&start[..PRELUDE_BYTES]);
    let number = u128::from_le_bytes(prelude);
    (number as u32, (number >> 32) as u32, (number >> 64) as u64)
}

/// Takes up to `most` bytes from the front.
fn take(bytes: &mut &[u8], most: usize, to: impl FnOnce(&[u8])) {
    let (now, later) = bytes.split_at(most.min(bytes.len()));
    to(now);
    *bytes = later;
}
