//! Channels and threads where the program runs: within a process, or within a simulation of processes.

use std::io;
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::TryRecvError;
use tinderbox_simulation::{Event, Fiber, Handle, current};

use super::crossbeam::{Crossbeam, Wire, after};
use super::{Channels, Disconnected, Received};

/// The environment in which the program runs: [`Crossbeam`], or a simulation of `tinderbox-simulation`.
///
/// In a simulation, the values are in the same channels, but a wait suspends the fiber, deadlines are virtual, and a
/// thread is a fiber. [`Host::default`] is the environment of the code that calls it.
#[derive(Clone, Debug)]
pub struct Host {
    /// `None` in an ordinary thread.
    simulation: Option<Handle>,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            simulation: current(),
        }
    }
}

impl Host {
    fn with_wake<T>(&self, inner: T) -> Woken<T> {
        let simulation = self.simulation.clone();
        let wake = Wake(simulation.map(|simulation| (simulation.event(), simulation)));
        Woken { inner, wake }
    }
}

/// Wakes the fibers that wait; `None` outside of a simulation.
#[derive(Clone, Debug)]
struct Wake(Option<(Event, Handle)>);

impl Wake {
    fn notify(&self) {
        if let Some((event, simulation)) = &self.0 {
            simulation.notify(*event);
        }
    }
}

/// A part of a [`Host`], and what wakes the fibers that wait for it.
#[derive(Clone, Debug)]
pub struct Woken<T> {
    inner: T,
    wake: Wake,
}

/// The sending end of a channel of a [`Host`].
#[derive(Debug)]
pub struct HostSender<T>(Woken<crossbeam_channel::Sender<T>>);

impl<T> Clone for HostSender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Drop for HostSender<T> {
    fn drop(&mut self) {
        // The channel may close. The receiver runs when the fiber that drops this waits, so it finds it closed.
        self.0.wake.notify();
    }
}

/// The receiving end of a channel of a [`Host`].
pub type HostReceiver<T> = Woken<crossbeam_channel::Receiver<T>>;

/// The signal of a [`Host`].
pub type HostSignal = Woken<Wire>;

/// A thread of a [`Host`].
#[derive(Debug)]
pub enum HostThread {
    /// A thread of the operating system.
    Thread(JoinHandle<()>),
    /// A fiber of a simulation.
    Fiber(Fiber),
}

impl Channels for Host {
    type Sender<T: Send + 'static> = HostSender<T>;
    type Receiver<T: Send + 'static> = HostReceiver<T>;
    type Signal = HostSignal;
    type Cell<T: Send + 'static> = Mutex<T>;
    type Thread = HostThread;
    type Deadline = Instant;

    fn channel<T: Send + 'static>(&self) -> (HostSender<T>, HostReceiver<T>) {
        let (sender, receiver) = Crossbeam.channel();
        let receiver = self.with_wake(receiver);
        let wake = receiver.wake.clone();
        (
            HostSender(Woken {
                inner: sender,
                wake,
            }),
            receiver,
        )
    }

    fn send<T: Send + 'static>(
        &self,
        sender: &HostSender<T>,
        message: T,
    ) -> Result<(), Disconnected> {
        Crossbeam.send(&sender.0.inner, message)?;
        sender.0.wake.notify();
        Ok(())
    }

    fn receive<T: Send + 'static>(
        &self,
        receiver: &HostReceiver<T>,
        stop: &HostSignal,
        deadline: Instant,
    ) -> Received<T> {
        let Some(simulation) = &self.simulation else {
            return Crossbeam.receive(&receiver.inner, &stop.inner, deadline);
        };
        let events: Vec<Event> = [&receiver.wake, &stop.wake]
            .into_iter()
            .flat_map(|wake| wake.0.as_ref().map(|(event, _)| *event))
            .collect();
        loop {
            if self.is_fired(stop) {
                return Received::Stopped;
            }
            let left = deadline.saturating_duration_since(simulation.instant());
            match receiver.inner.try_recv() {
                Ok(message) => return Received::Message(message),
                Err(TryRecvError::Disconnected) => return Received::Closed,
                Err(TryRecvError::Empty) if left.is_zero() => return Received::TimedOut,
                Err(TryRecvError::Empty) => simulation.wait(&events, Some(left)),
            };
        }
    }

    fn signal(&self) -> HostSignal {
        self.with_wake(Crossbeam.signal())
    }

    fn fire(&self, signal: &HostSignal) {
        Crossbeam.fire(&signal.inner);
        signal.wake.notify();
    }

    fn is_fired(&self, signal: &HostSignal) -> bool {
        Crossbeam.is_fired(&signal.inner)
    }

    fn cell<T: Send + 'static>(&self, value: T) -> Mutex<T> {
        Crossbeam.cell(value)
    }

    fn with<T: Send + 'static, R>(&self, cell: &Mutex<T>, run: impl FnOnce(&mut T) -> R) -> R {
        Crossbeam.with(cell, run)
    }

    fn deadline(&self, timeout: Duration) -> Instant {
        match &self.simulation {
            Some(simulation) => after(simulation.instant(), timeout),
            None => Crossbeam.deadline(timeout),
        }
    }

    fn spawn(&self, name: String, body: impl FnOnce() + Send + 'static) -> io::Result<HostThread> {
        Ok(match &self.simulation {
            Some(simulation) => HostThread::Fiber(simulation.spawn(name, body)),
            None => HostThread::Thread(Crossbeam.spawn(name, body)?),
        })
    }

    fn join(&self, thread: HostThread) {
        match thread {
            HostThread::Thread(thread) => Crossbeam.join(thread),
            HostThread::Fiber(fiber) => fiber.join(),
        }
    }
}
