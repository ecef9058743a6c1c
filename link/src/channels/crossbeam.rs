//! Channels and threads within a process.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, select_biased, unbounded};

use super::{Channels, Disconnected, Received};

/// An environment of `crossbeam-channel` channels and operating system threads.
///
/// A wait is a `select` over the channel and the signal: a message or the signal wakes it immediately,
/// without polling.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crossbeam;

/// A signal: a channel that carries no messages and is closed to fire.
#[derive(Clone, Debug)]
pub struct Wire {
    /// Removed by the first call of `fire`; dropping it closes the channel.
    armed: Arc<Mutex<Option<Sender<()>>>>,
    end: Receiver<()>,
    /// Whether the channel is, or is about to be, closed: cheaper to ask, before every operation of a program.
    is_fired: Arc<AtomicBool>,
}

impl Channels for Crossbeam {
    type Sender<T: Send + 'static> = Sender<T>;
    type Receiver<T: Send + 'static> = Receiver<T>;
    type Signal = Wire;
    type Cell<T: Send + 'static> = Mutex<T>;
    type Thread = JoinHandle<()>;
    type Deadline = Instant;

    fn channel<T: Send + 'static>(&self) -> (Sender<T>, Receiver<T>) {
        unbounded()
    }

    fn send<T: Send + 'static>(&self, sender: &Sender<T>, message: T) -> Result<(), Disconnected> {
        sender.send(message).map_err(|_| Disconnected)
    }

    fn receive<T: Send + 'static>(
        &self,
        receiver: &Receiver<T>,
        stop: &Wire,
        deadline: Instant,
    ) -> Received<T> {
        let left = deadline.saturating_duration_since(Instant::now());
        select_biased! {
            recv(stop.end) -> _ => Received::Stopped,
            recv(receiver) -> message => message.map_or(Received::Closed, Received::Message),
            default(left) => Received::TimedOut,
        }
    }

    fn signal(&self) -> Wire {
        let (sender, end) = unbounded();
        let armed = Arc::new(Mutex::new(Some(sender)));
        Wire {
            armed,
            end,
            is_fired: Arc::default(),
        }
    }

    fn fire(&self, signal: &Wire) {
        // Under the lock, so that a second call does not return before the first has closed the channel.
        self.with(&signal.armed, |armed| {
            // Before the channel closes: a thread that is woken must see that the signal has fired.
            signal.is_fired.store(true, Ordering::Release);
            drop(armed.take());
        });
    }

    fn is_fired(&self, signal: &Wire) -> bool {
        signal.is_fired.load(Ordering::Acquire)
    }

    fn cell<T: Send + 'static>(&self, value: T) -> Mutex<T> {
        Mutex::new(value)
    }

    fn with<T: Send + 'static, R>(&self, cell: &Mutex<T>, run: impl FnOnce(&mut T) -> R) -> R {
        // The protocol replaces values as a whole, so a value is valid even after a panic of another thread.
        run(&mut cell.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn deadline(&self, timeout: Duration) -> Instant {
        after(Instant::now(), timeout)
    }

    fn spawn(
        &self,
        name: String,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        thread::Builder::new().name(name).spawn(body)
    }

    fn join(&self, thread: JoinHandle<()>) {
        // The panic hook has already reported the panic.
        let _ = thread.join();
    }
}

/// Returns the point in time `timeout` after another one.
pub(super) fn after(start: Instant, timeout: Duration) -> Instant {
    // Longer than any run, and within the range of every system's clock.
    const YEARS: Duration = Duration::from_secs(1 << 30);
    start.checked_add(timeout).unwrap_or_else(|| start + YEARS)
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::TryRecvError;

    use super::*;

    /// Otherwise it would report the failure of another rank as its own.
    #[test]
    fn a_thread_that_is_woken_sees_that_the_signal_has_fired() {
        let channels = Crossbeam;
        for _ in 0..5000 {
            let signal = channels.signal();
            thread::scope(|scope| {
                let woken = scope.spawn(|| {
                    // Asks without a pause, so that it sees the closed channel at once.
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
