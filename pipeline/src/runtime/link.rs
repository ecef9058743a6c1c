//! The links that carry tensors between ranks.

use std::fmt;

use tinderbox_fake::DynTensor;
use tinderbox_link::Crossbeam;

use crate::schedule::{Action, Message, RankIndex};
use crate::{LinkError, PipelineError};

/// The name of a message, unique in a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// The number of steps and evaluations that the pipeline ran before.
    pub round: u64,
    /// The message.
    pub message: Message,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In the notation of schedules, as the receiver lists it: `3F5<2F5`.
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
/// - A wait ends when the message arrives, when its timeout expires, or when any rank aborts.
/// - A link outlives its rank's call to [`abort`](Self::abort), so that other ranks see the reason before
///   they see the link close.
pub trait Link: Send {
    /// Announces a message that will be received in this round, so that its transfer can begin. A rank
    /// announces all messages before it runs its list.
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
    /// When the message does not arrive in time, or a rank has aborted.
    fn poll(&mut self, from: RankIndex, tag: Tag) -> Result<Vec<DynTensor>, LinkError>;

    /// Ends every wait of every rank immediately. The first reason is kept.
    fn abort(&self, reason: PipelineError);
}

/// The stop signal that all ranks share: set once, by the first rank that fails. A pipeline that ends
/// normally sets it too, without a reason.
pub(crate) type Abort = tinderbox_link::Abort<PipelineError, Crossbeam>;
