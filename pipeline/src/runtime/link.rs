//! What carries tensors between ranks.

use std::fmt;

use tinderbox_fake::DynTensor;
use tinderbox_link::Crossbeam;

use crate::schedule::{Action, Message, RankIndex};
use crate::{LinkError, PipelineError};

/// The name of one message: it is sent once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// How many steps and evaluations the pipeline had run before.
    pub round: u64,
    /// What it is.
    pub message: Message,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As schedules write it, seen by the receiver: `3F5<2F5`.
        let message = Action::Receive(self.message);
        write!(f, "{message} of round {}", self.round)
    }
}

/// One rank's end of the links to all others.
///
/// # Contract
///
/// - Messages with different tags may arrive in any order; one tag names one message.
/// - `send` does not wait for the receiver.
/// - A wait ends when the message is there, when its timeout is over, or when any rank aborts.
/// - A link outlives what its rank says through [`abort`](Self::abort): others must not learn that it
///   is gone before they learn why.
pub trait Link: Send {
    /// Says that a message will be asked for in this round, so that its transfer can begin. A rank
    /// says so of all messages before it runs its list.
    ///
    /// # Errors
    ///
    /// When the link is closed.
    fn post_receive(&mut self, from: RankIndex, tag: Tag) -> Result<(), LinkError>;

    /// Sends values.
    ///
    /// # Errors
    ///
    /// When the receiver has ended or a rank has aborted.
    fn send(&mut self, to: RankIndex, tag: Tag, values: Vec<DynTensor>) -> Result<(), LinkError>;

    /// Waits for a message. The values are on the sender's device.
    ///
    /// # Errors
    ///
    /// When it does not come in time, or a rank has aborted.
    fn poll(&mut self, from: RankIndex, tag: Tag) -> Result<Vec<DynTensor>, LinkError>;

    /// Makes every wait of every rank end now. The first reason is kept.
    fn abort(&self, reason: PipelineError);
}

/// The stop signal that all ranks share: set once, by the first that fails. It is set too when a
/// pipeline ends in order, then without a reason.
pub(super) type Abort = tinderbox_link::Abort<PipelineError, Crossbeam>;
