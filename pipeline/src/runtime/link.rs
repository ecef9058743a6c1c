//! The links that carry tensors between ranks, and the links between the threads of one process.

use std::time::Duration;

use derive_more::Display;
use serde::{Deserialize, Serialize};
use tinderbox_fake::DynTensor;
use tinderbox_world::link::{Mailbox, mailboxes};

use crate::schedule::{Action, Message, RankIndex, StageIndex};
use crate::{LinkError, PipelineError};

/// The name of a message, unique between its two ranks.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Display,
)]
#[display("{message} of round {round}")]
pub struct Tag {
    /// The number of steps and evaluations since the ranks were started.
    pub round: u64,
    /// The content of the message.
    pub message: LinkMessage,
}

/// The content of a message between two ranks.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Display,
)]
pub enum LinkMessage {
    /// A message of the schedule, between two ranks of one replica.
    // In the notation of schedules, as the receiver lists it: `3F5<2F5`.
    #[display("{}", Action::Receive(*_0))]
    Schedule(Message),
    /// Gradients of the parameters that the receiver updates, from another replica of its stage.
    #[display("message {bucket} of gradients of stage {stage}")]
    Gradients {
        /// The stage.
        stage: StageIndex,
        /// The number of the message among the messages for the receiver.
        bucket: usize,
    },
    /// The sums of squares of the gradients that the sender has summed over all replicas.
    #[display("norms of stage {stage}")]
    Squares {
        /// The stage.
        stage: StageIndex,
    },
    /// Parameters that the sender has updated.
    #[display("message {bucket} of parameters of stage {stage}")]
    Parameters {
        /// The stage.
        stage: StageIndex,
        /// The number of the message among the messages of the sender.
        bucket: usize,
    },
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

    /// Ends every wait of every rank immediately. Keeps the first reason.
    fn abort(&self, reason: PipelineError);
}

/// The stop signal that all ranks share: set once, by the first rank that fails. A pipeline that ends
/// normally sets it too, without a reason.
pub(crate) type Abort = tinderbox_world::link::Abort<PipelineError>;

/// One rank's end of in-process links, which pass tensors without a copy.
#[derive(Debug)]
pub struct LocalLink {
    mailbox: Mailbox<Tag, Vec<DynTensor>>,
    abort: Abort,
}

/// Returns the ends of links between `ranks` ranks, in the order of the ranks. A wait for a message
/// fails after `timeout`.
pub(crate) fn local_links(ranks: usize, abort: &Abort, timeout: Duration) -> Vec<LocalLink> {
    let link = |mailbox| LocalLink {
        mailbox,
        abort: abort.clone(),
    };
    let mailboxes = mailboxes(ranks, abort, timeout);
    mailboxes.into_iter().map(link).collect()
}

impl Link for LocalLink {
    fn post_receive(&mut self, from: RankIndex, tag: Tag) -> Result<(), LinkError> {
        self.mailbox.post(from, &tag)
    }

    fn send(&mut self, to: RankIndex, tag: Tag, values: Vec<DynTensor>) -> Result<(), LinkError> {
        self.mailbox.send(to, tag, values)
    }

    fn poll(&mut self, from: RankIndex, tag: Tag) -> Result<Vec<DynTensor>, LinkError> {
        self.mailbox.poll(from, tag)
    }

    fn abort(&self, reason: PipelineError) {
        self.abort.trigger(reason);
    }
}
