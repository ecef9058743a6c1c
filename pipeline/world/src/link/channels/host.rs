//! Channels and threads of a process, or of a simulated process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[cfg(feature = "simulation")]
use crossbeam_channel::TryRecvError;
use crossbeam_channel::{select_biased, unbounded};
use parking_lot::Mutex;

use super::{Channels, Disconnected, Received};
use crate::link::clock::{Instant, Thread, Wake};

/// The environment of a program: channels of `crossbeam-channel`, and the clock and the threads of the operating system.
///
/// A wait is a `select` over the channel and the signal: a message or the signal wakes it immediately, without polling.
///
/// In a simulation of `tinderbox-simulation`, the channels are the same, but a wait suspends the fiber, deadlines are virtual,
/// and a thread is a fiber.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

/// The sending end of a channel of a [`Host`].
#[derive(Debug)]
pub struct Sender<T> {
    inner: crossbeam_channel::Sender<T>,
    wake: Wake,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            wake: self.wake.clone(),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // The channel may close. The receiver runs only after this fiber waits, so it finds the channel closed.
        self.wake.notify();
    }
}

/// The receiving end of a channel of a [`Host`].
#[derive(Debug)]
pub struct Receiver<T> {
    inner: crossbeam_channel::Receiver<T>,
    wake: Wake,
}

/// A signal of a [`Host`]: a channel that carries no messages and is closed to fire.
#[derive(Clone, Debug)]
pub struct Signal {
    /// Removed by the first call of `fire`; dropping it closes the channel.
    armed: Arc<Mutex<Option<crossbeam_channel::Sender<()>>>>,
    end: crossbeam_channel::Receiver<()>,
    /// Whether the channel is closed, or about to be. It is cheap to read before every operation of a program.
    is_fired: Arc<AtomicBool>,
    wake: Wake,
}

impl Channels for Host {
    type Sender<T: Send + 'static> = Sender<T>;
    type Receiver<T: Send + 'static> = Receiver<T>;
    type Signal = Signal;
    type Cell<T: Send + 'static> = Mutex<T>;
    type Thread = Thread;
    type Deadline = Instant;

    fn channel<T: Send + 'static>(&self) -> (Sender<T>, Receiver<T>) {
        let (sender, inner) = unbounded();
        let receiver = Receiver {
            inner,
            wake: Wake::new(),
        };
        let sender = Sender {
            inner: sender,
            wake: receiver.wake.clone(),
        };
        (sender, receiver)
    }

    fn send<T: Send + 'static>(&self, sender: &Sender<T>, message: T) -> Result<(), Disconnected> {
        sender.inner.send(message).map_err(|_| Disconnected)?;
        sender.wake.notify();
        Ok(())
    }

    fn receive<T: Send + 'static>(
        &self,
        receiver: &Receiver<T>,
        stop: &Signal,
        deadline: Instant,
    ) -> Received<T> {
        #[cfg(feature = "simulation")]
        if let Some((sent, simulation)) = &receiver.wake.simulated
            && let Some((fired, _)) = &stop.wake.simulated
        {
            loop {
                if self.is_fired(stop) {
                    return Received::Stopped;
                }
                let left = deadline.left();
                match receiver.inner.try_recv() {
                    Ok(message) => return Received::Message(message),
                    Err(TryRecvError::Disconnected) => return Received::Closed,
                    Err(TryRecvError::Empty) if left.is_zero() => return Received::TimedOut,
                    Err(TryRecvError::Empty) => simulation.wait(&[*sent, *fired], Some(left)),
                };
            }
        }
        select_biased! {
            recv(stop.end) -> _ => Received::Stopped,
            recv(receiver.inner) -> message => message.map_or(Received::Closed, Received::Message),
            default(deadline.left()) => Received::TimedOut,
        }
    }

    fn signal(&self) -> Signal {
        let (sender, end) = unbounded();
        Signal {
            armed: Arc::new(Mutex::new(Some(sender))),
            end,
            is_fired: Arc::default(),
            wake: Wake::new(),
        }
    }

    fn fire(&self, signal: &Signal) {
        // Under the lock, so that a second call does not return before the first has closed the channel.
        self.with(&signal.armed, |armed| {
            // Before the channel closes: a thread that is woken must see that the signal has fired.
            signal.is_fired.store(true, Ordering::Release);
            drop(armed.take());
        });
        signal.wake.notify();
    }

    fn is_fired(&self, signal: &Signal) -> bool {
        signal.is_fired.load(Ordering::Acquire)
    }

    fn cell<T: Send + 'static>(&self, value: T) -> Mutex<T> {
        Mutex::new(value)
    }

    fn with<T: Send + 'static, R>(&self, cell: &Mutex<T>, run: impl FnOnce(&mut T) -> R) -> R {
        // The protocol replaces values as a whole, so a value is valid even after a panic of another thread.
        run(&mut cell.lock())
    }

    fn deadline(&self, timeout: Duration) -> Instant {
        Instant::after(timeout)
    }

    fn spawn(&self, name: String, body: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
        Thread::spawn(name, body)
    }

    fn join(&self, thread: Thread) {
        thread.join();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use crossbeam_channel::TryRecvError;

    use super::*;

    /// Otherwise the thread would report the failure of another rank as its own.
    #[test]
    fn a_thread_that_is_woken_sees_that_the_signal_has_fired() {
        let channels = Host;
        for _ in 0..5000 {
            let signal = channels.signal();
            thread::scope(|scope| {
                let woken = scope.spawn(|| {
                    // Polls without a pause, so that it sees the closed channel at once.
                    while let Err(TryRecvError::Empty) = signal.end.try_recv() {
                        std::hint::spin_loop();
                    }
                    assert!(channels.is_fired(&signal));
                });
                channels.fire(&signal);
                woken.join().expect("it sees the signal");
            });
        }
    }
}
