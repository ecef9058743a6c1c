//! What carries tensors between ranks.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use tinderbox_fake::DynTensor;

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

/// The stop signal that all ranks share: set once, by the first that fails.
#[derive(Clone)]
pub struct Abort {
    inner: Arc<Inner>,
    signal: Receiver<()>,
}

struct Inner {
    /// Dropping the sender wakes every wait on `signal`.
    armed: Mutex<Option<Sender<()>>>,
    reason: Mutex<Option<PipelineError>>,
}

impl Default for Abort {
    fn default() -> Self {
        let (sender, signal) = bounded(0);
        let inner = Inner {
            armed: Mutex::new(Some(sender)),
            reason: Mutex::new(None),
        };
        Self {
            inner: Arc::new(inner),
            signal,
        }
    }
}

impl Abort {
    /// Wakes every wait; keeps the first reason.
    pub fn trigger(&self, reason: PipelineError) {
        let mut kept = lock(&self.inner.reason);
        // A rank that was woken reports only that others failed.
        if lock(&self.inner.armed).take().is_some() {
            *kept = Some(reason);
        }
    }

    /// Disconnected once a rank has aborted.
    pub fn signal(&self) -> &Receiver<()> {
        &self.signal
    }

    /// Whether a rank has aborted.
    pub fn is_triggered(&self) -> bool {
        lock(&self.inner.armed).is_none()
    }

    /// The first reason, once.
    pub fn take_reason(&self) -> Option<PipelineError> {
        lock(&self.inner.reason).take()
    }
}

/// When a wait ends; a wait that is too long for the clock ends in years.
pub(super) fn deadline(timeout: Duration) -> Instant {
    const YEARS: Duration = Duration::from_secs(1 << 30);
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or_else(|| now + YEARS)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // The two values are replaced whole, so a panic elsewhere leaves them usable.
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl fmt::Debug for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Abort")
            .field("triggered", &self.is_triggered())
            .finish()
    }
}
