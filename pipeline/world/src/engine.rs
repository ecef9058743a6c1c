//! Engines, which carry frames between processes, and the receivers of frames.

use std::sync::Arc;

use tinderbox_ids::RankIndex;

use crate::environment::Local;
use crate::error::WorldError;
use crate::frame::{Buffer, Frame, Received};
use crate::peers::Failure;

/// Carries frames of bytes between the processes of a world.
///
/// # Contract
///
/// - [`start`](Self::start) returns when every process can send to every other one.
/// - [`Outbox::send`] never waits. Each frame arrives once, whole, or not at all. Frames of one [`Priority`] arrive from one
///   process at another in the order of the calls; frames of different processes arrive in any order.
/// - The engine does not check whether processes are stopped: the world sends heartbeats.
/// - The engine reports the end of a connection once, by [`Events::lost`], after everything that arrived before.
/// - After [`Outbox::close`], the engine has no thread, port or file.
///
/// `testing::check_engine` (feature `testing`) checks an engine.
pub trait Engine: Send {
    /// Returns the name of the engine for errors.
    fn name(&self) -> &'static str;

    /// Returns the rank of this process.
    fn rank(&self) -> RankIndex;

    /// Returns the number of processes.
    fn size(&self) -> usize;

    /// Connects to all other processes. From then on, threads of the engine pass the frames that arrive to `events`.
    ///
    /// # Errors
    ///
    /// When a process does not join in time, or refuses this one.
    fn start(self: Box<Self>, events: Arc<dyn Events>) -> Result<Started, WorldError>;
}

/// An engine that is connected.
#[derive(derive_more::Debug)]
pub struct Started {
    /// The sending side.
    #[debug(skip)]
    pub outbox: Box<dyn Outbox>,
    /// The position of this process on its machine, if the engine knows it.
    pub local: Option<Local>,
}

/// The priority of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// The frame is sent after all earlier frames of this priority.
    Normal,
    /// The frame is sent when there is nothing else to send to its receiver: later frames may arrive before it. An engine may
    /// send it as a normal frame.
    Idle,
}

/// The sending side of an engine.
pub trait Outbox: Send + Sync {
    /// Queues a frame, without waiting. Does nothing if the receiver is lost.
    fn send(&self, to: RankIndex, frame: Frame, priority: Priority);

    /// Discards the queued idle frames, because no process reads them any more. Default: does nothing.
    fn forget_idle(&self) {}

    /// Ends the engine. Frames that are still queued may be discarded: the world waits for the confirmation of its last
    /// messages before it calls this, once.
    fn close(&self, close: Close);
}

/// The kind of a world's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Close {
    /// All ranks have left.
    Left,
    /// A rank failed.
    Failed,
}

/// The receiver of an engine's frames and events.
pub trait Events: Send + Sync {
    /// A frame arrived. For each sender, the calls are in the order of its frames.
    fn received(&self, from: RankIndex, frame: Received);

    /// Some bytes arrived, perhaps not a whole frame yet: the sender is alive.
    fn alive(&self, from: RankIndex);

    /// The connection to a process ended. This is the last event of its rank.
    fn lost(&self, from: RankIndex, reason: String);
}

/// The receiver of a channel's frames, which threads of the engine call. It does not wait.
pub trait Handler: Send + Sync {
    /// A frame arrived. Frames of one rank arrive in the order in which it sent them.
    fn received(&self, from: RankIndex, header: &[u8], pieces: Vec<Buffer>);

    /// A rank failed. Other ranks may send no more frames.
    fn failed(&self, failure: &Failure);
}
