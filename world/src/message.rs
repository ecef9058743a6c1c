//! The headers of a world's own frames.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::frame::Frame;
use crate::members::{Generation, Vote};
use crate::peers::Word;

/// What a frame is. Of a channel, the bytes after it in the header are the channel's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// A word of the shutdown protocol.
    Word(Word),
    /// The sender is alive; what it does, if that has changed. Of any generation.
    Beat(Option<String>),
    /// A message of the agreement on the next generation. Of any generation.
    Vote(Vote),
    /// The value of a call of all ranks, in the only piece.
    Call { sequence: u64, call: String },
    /// A frame of a channel.
    Channel(u32),
}

impl Kind {
    /// Returns a frame of a generation, with the bytes of a channel in its header.
    pub(crate) fn frame(&self, generation: Generation, rest: &[u8], pieces: Vec<Bytes>) -> Frame {
        // Nothing in it can fail to be written.
        let mut header = postcard::to_stdvec(&(generation, self)).unwrap_or_default();
        header.extend_from_slice(rest);
        Frame { header, pieces }
    }

    /// Reads a header: the generation, what the frame is, and the bytes of a channel. `None` if this version has no such
    /// header.
    pub(crate) fn read(header: &[u8]) -> Option<(Generation, Self, &[u8])> {
        let ((generation, kind), rest) = postcard::take_from_bytes(header).ok()?;
        Some((generation, kind, rest))
    }
}
