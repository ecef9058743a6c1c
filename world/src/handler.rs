//! What a channel gives its frames to.

use tinderbox_schedule::RankIndex;

use crate::frame::Buffer;
use crate::peers::Failure;

/// Receives the frames of a channel, on threads of the engine. It does not wait.
pub trait Handler: Send + Sync {
    /// A frame arrived. Frames of one rank arrive in the order in which it sent them.
    fn received(&self, from: RankIndex, header: &[u8], pieces: Vec<Buffer>);

    /// A rank failed: nothing more is to be expected.
    fn failed(&self, failure: &Failure);
}
