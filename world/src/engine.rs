//! What carries frames between processes.

use std::sync::Arc;

use tinderbox_schedule::RankIndex;

use crate::environment::Local;
use crate::error::WorldError;
use crate::frame::{Frame, Received};

/// Carries frames of bytes between the processes of a world.
///
/// # Contract
///
/// - [`start`](Self::start) returns when every process can send to every other.
/// - [`Outbox::send`] and [`Outbox::send_when_idle`] never wait. What each of them sends from one process to another arrives
///   in the order in which it was sent, each frame once, whole or not at all; frames of different processes in any order.
/// - The engine has no frames, beats or timeouts of its own for processes that are stopped: the world sends beats.
/// - A connection that ends is reported once by [`Events::lost`], after everything that arrived before.
/// - After [`Outbox::close`], nothing of the engine is left: no thread, port or file.
///
/// `testing::check_engine` (feature `testing`) checks an engine.
pub trait Engine: Send {
    /// Returns the name in errors.
    fn name(&self) -> &'static str;

    /// Returns the rank of this process.
    fn rank(&self) -> RankIndex;

    /// Returns the number of processes.
    fn size(&self) -> usize;

    /// Connects to all other processes, and begins to carry. What arrives is given to `events`, from threads of the
    /// engine.
    ///
    /// # Errors
    ///
    /// When a process does not come in time, or refuses this one.
    fn start(self: Box<Self>, events: Arc<dyn Events>) -> Result<Started, WorldError>;
}

/// An engine that carries.
#[derive(derive_more::Debug)]
pub struct Started {
    /// The sending side.
    #[debug(skip)]
    pub outbox: Box<dyn Outbox>,
    /// The position of this process on its machine, if the engine knows it.
    pub local: Option<Local>,
}

/// The sending side of an engine.
pub trait Outbox: Send + Sync {
    /// Queues a frame, without waiting. Does nothing if the receiver is lost.
    fn send(&self, to: RankIndex, frame: Frame);

    /// Queues a frame that is sent when there is nothing else to send: frames that are queued later by
    /// [`send`](Self::send) may arrive before it. Frames of this kind arrive in their own order. An engine that has no such
    /// queue sends it as any other.
    fn send_when_idle(&self, to: RankIndex, frame: Frame) {
        self.send(to, frame);
    }

    /// Forgets what [`send_when_idle`](Self::send_when_idle) has queued and nobody reads any more. Default: nothing.
    fn forget_idle(&self) {}

    /// Ends. Frames that were not transferred by now may be discarded: the world waits for the confirmation of those that
    /// matter, and calls this once.
    fn close(&self, close: Close);
}

/// How a world ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Close {
    /// All ranks have left.
    Left,
    /// A rank failed.
    Failed,
}

/// Where an engine reports what arrives.
pub trait Events: Send + Sync {
    /// A frame arrived. Of one sender, this is called in the order of the frames.
    fn received(&self, from: RankIndex, frame: Received);

    /// Some bytes arrived, also if they are not a whole frame yet: the sender is alive.
    fn heard(&self, from: RankIndex);

    /// A process can't be heard of any more. This is the last event of its rank.
    fn lost(&self, from: RankIndex, reason: String);
}
