//! The headers of a world's own frames.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::frame::Frame;
use crate::members::{Generation, Vote};
use crate::peers::Word;

/// The kind of a frame. In the header of a channel's frame, the bytes of the channel follow it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// A message of the shutdown protocol.
    Word(Word),
    /// A heartbeat of any generation, with the report of the sender if that has changed.
    Beat(Option<String>),
    /// A message of the agreement on the next generation, from any generation.
    Vote(Vote),
    /// The value of a call of all ranks, in the only piece.
    Call { sequence: u64, call: String },
    /// A frame of a channel.
    Channel(u32),
}

impl Kind {
    /// Returns a frame of a generation, with the bytes of a channel in its header.
    pub(crate) fn frame(&self, generation: Generation, rest: &[u8], pieces: Vec<Bytes>) -> Frame {
        // Serialization of these types never fails.
        let mut header = postcard::to_stdvec(&(generation, self)).unwrap_or_default();
        header.extend_from_slice(rest);
        Frame { header, pieces }
    }

    /// Reads a header: the generation, the kind, and the bytes of a channel. `None` if it is not a header of this version.
    pub(crate) fn read(header: &[u8]) -> Option<(Generation, Self, &[u8])> {
        let ((generation, kind), rest) = postcard::take_from_bytes(header).ok()?;
        Some((generation, kind, rest))
    }
}
