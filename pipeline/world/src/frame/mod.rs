//! Frames: a header, and pieces of bytes.
//!
//! ```text
//!      0        4        8                16        16 + 8 n
//!      +--------+--------+----------------+---------+--------+---------+-----+---------+
//!      | header | pieces | bytes of all   | lengths | header | piece 0 | ... | piece n |
//!      | length |   n    | pieces         |  n x 8  |        |         |     |  - 1    |
//!      +--------+--------+----------------+---------+--------+---------+-----+---------+
//! ```
//!
//! All numbers are unsigned and little-endian. Nothing is padded. A frame is read in slices of any lengths. Every length is
//! checked against a limit before memory is reserved.

mod buffer;
mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use buffer::Buffer;
#[cfg(feature = "grpc")]
pub(crate) use decode::take;
pub use decode::{Decoder, FrameError};
pub use encode::Frame;

/// The number of bytes before the lengths of the pieces.
const PRELUDE_BYTES: usize = 16;

/// A frame that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The header.
    pub header: Vec<u8>,
    /// The pieces, each in memory of its own.
    pub pieces: Vec<Buffer>,
}
