//! The environment of the protocol: channels, a stop signal, locks, threads and a clock.

mod host;

use std::io;
use std::time::Duration;

pub use host::{Host, Receiver, Sender, Signal};

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<T> {
    /// A message was received.
    Message(T),
    /// The stop signal has fired.
    Stopped,
    /// The channel is empty and all its senders are dropped.
    Closed,
    /// The deadline has passed.
    TimedOut,
}

/// The error of a send whose receiver is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnected;

/// The environment of the protocol: the channels, locks, threads and the clock that it uses.
///
/// The protocol is generic over this trait so that a model checker can replace the operating system: the
/// tests of this crate run it on `shuttle`, which chooses the order of events.
///
/// # Contract
///
/// - A channel is unbounded, so a send never blocks. Messages of one sender are received exactly once and in the
///   order in which they were sent.
/// - A signal fires at most once and stays fired.
/// - A wait in [`receive`](Self::receive) is registered with the channel and with the signal before
///   either is checked for the last time. A send or a firing between that check and the sleep therefore wakes it.
/// - Everything that a thread did before it fired a signal or sent a message is visible to the threads that it
///   wakes.
pub trait Channels: Clone + Send + Sync + 'static {
    /// The sending end of a channel. It can be cloned; the channel closes when the last clone is dropped.
    type Sender<T: Send + 'static>: Clone + Send;
    /// The receiving end of a channel.
    type Receiver<T: Send + 'static>: Send;
    /// A signal that fires once and wakes every wait on it.
    type Signal: Clone + Send + Sync;
    /// A value protected by a lock.
    type Cell<T: Send + 'static>: Send + Sync;
    /// A running thread. Dropping it detaches the thread.
    type Thread: Send;
    /// A point in time.
    type Deadline: Copy;

    /// Creates a channel.
    fn channel<T: Send + 'static>(&self) -> (Self::Sender<T>, Self::Receiver<T>);

    /// Sends a message without blocking.
    ///
    /// # Errors
    ///
    /// When the receiver is dropped.
    fn send<T: Send + 'static>(&self, to: &Self::Sender<T>, message: T)
    -> Result<(), Disconnected>;

    /// Waits for a message until the signal fires or the deadline passes. The signal takes precedence over a message,
    /// and a message over the deadline.
    fn receive<T: Send + 'static>(
        &self,
        receiver: &Self::Receiver<T>,
        stop: &Self::Signal,
        deadline: Self::Deadline,
    ) -> Received<T>;

    /// Creates a signal that has not fired.
    fn signal(&self) -> Self::Signal;

    /// Fires a signal. When this returns, the signal has fired, by this call or an earlier one.
    fn fire(&self, signal: &Self::Signal);

    /// Returns whether a signal has fired.
    fn is_fired(&self, signal: &Self::Signal) -> bool;

    /// Wraps a value in a lock.
    fn cell<T: Send + 'static>(&self, value: T) -> Self::Cell<T>;

    /// Runs a closure on the value while the lock is held.
    fn with<T: Send + 'static, R>(&self, cell: &Self::Cell<T>, run: impl FnOnce(&mut T) -> R) -> R;

    /// Returns the point in time `timeout` from now; `Duration::MAX` is never reached.
    fn deadline(&self, timeout: Duration) -> Self::Deadline;

    /// Starts a thread.
    ///
    /// # Errors
    ///
    /// When the operating system can't start a thread.
    fn spawn(&self, name: String, body: impl FnOnce() + Send + 'static)
    -> io::Result<Self::Thread>;

    /// Waits until a thread has ended, normally or by a panic.
    fn join(&self, thread: Self::Thread);
}
