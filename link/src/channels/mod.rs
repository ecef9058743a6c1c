//! What the protocol needs of the outside: channels, a stop signal, a lock, threads and a clock.

mod crossbeam;

use std::io;
use std::time::Duration;

pub use crossbeam::{Crossbeam, Wire};

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<T> {
    /// With a message.
    Message(T),
    /// The stop signal has fired.
    Stopped,
    /// Every sender is gone, and so is every message.
    Closed,
    /// The deadline has passed.
    TimedOut,
}

/// The other end of a channel is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnected;

/// Everything of the outside that the protocol touches.
///
/// The protocol is written over this trait so that a model checker can stand in for the machine: the
/// tests of this crate run it on `shuttle`, which picks every order of events itself.
///
/// # Contract
///
/// - A channel is unbounded, so a send never waits. What one sender sends arrives once and in the
///   order in which it was sent.
/// - A signal fires once and stays so.
/// - A wait in [`receive`](Self::receive) is registered with the channel and with the signal before
///   either is looked at for the last time. So no send and no firing falls between the look and the
///   sleep.
/// - What a thread did before it fired a signal or sent a message is seen by whoever that wakes.
pub trait Channels: Clone + Send + Sync + 'static {
    /// Where messages go in. It can be cloned; the channel closes when the last one is dropped.
    type Sender<T: Send + 'static>: Clone + Send;
    /// Where messages come out.
    type Receiver<T: Send + 'static>: Send;
    /// Fires once and wakes every wait on it.
    type Signal: Clone + Send + Sync;
    /// A value behind a lock.
    type Cell<T: Send + 'static>: Send + Sync;
    /// A running thread. Dropping it leaves the thread to itself.
    type Thread: Send;
    /// A moment of the clock.
    type Deadline: Copy;

    /// A new channel.
    fn channel<T: Send + 'static>(&self) -> (Self::Sender<T>, Self::Receiver<T>);

    /// Sends a message without waiting.
    ///
    /// # Errors
    ///
    /// When the receiver is gone.
    fn send<T: Send + 'static>(
        &self,
        sender: &Self::Sender<T>,
        message: T,
    ) -> Result<(), Disconnected>;

    /// Waits for a message until the signal fires or the deadline passes. Where several have happened
    /// the signal goes first, then the message.
    fn receive<T: Send + 'static>(
        &self,
        receiver: &Self::Receiver<T>,
        stop: &Self::Signal,
        deadline: Self::Deadline,
    ) -> Received<T>;

    /// A signal that has not fired.
    fn signal(&self) -> Self::Signal;

    /// Fires a signal. When it returns the signal has fired, by this call or another.
    fn fire(&self, signal: &Self::Signal);

    /// Whether a signal has fired.
    fn is_fired(&self, signal: &Self::Signal) -> bool;

    /// Puts a value behind a lock.
    fn cell<T: Send + 'static>(&self, value: T) -> Self::Cell<T>;

    /// Runs code on the value while no other thread does.
    fn with<T: Send + 'static, R>(&self, cell: &Self::Cell<T>, run: impl FnOnce(&mut T) -> R) -> R;

    /// The moment after a time; `Duration::MAX` never comes.
    fn deadline(&self, timeout: Duration) -> Self::Deadline;

    /// Starts a thread.
    ///
    /// # Errors
    ///
    /// When the system has no thread to give.
    fn spawn(&self, name: String, body: impl FnOnce() + Send + 'static)
    -> io::Result<Self::Thread>;

    /// Waits until a thread has ended, by a panic or without.
    fn join(&self, thread: Self::Thread);
}
