//! The clock, the waits and the threads of a process: the operating system's, or with the feature `testing` a simulation's
//! if the process is simulated. Public for the crates of this project that run in a process of a world.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[cfg(feature = "testing")]
use tinderbox_simulation::{Event, Fiber, Handle, current};

/// Returns whether this code runs in a simulation, whose processes and threads share one thread of the operating system.
#[must_use]
pub fn is_simulated() -> bool {
    #[cfg(feature = "testing")]
    if current().is_some() {
        return true;
    }
    false
}

/// A point in time, as [`std::time::Instant`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(std::time::Instant);

impl Instant {
    /// Returns the present.
    #[inline]
    pub fn now() -> Self {
        #[cfg(feature = "testing")]
        if let Some(simulation) = current() {
            return Self(simulation.instant());
        }
        Self(std::time::Instant::now())
    }

    /// Returns the time since then.
    #[inline]
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Self::now().0.saturating_duration_since(self.0)
    }
}

/// Locks a mutex. A panic of another thread that held the lock is ignored: every change is complete before something that
/// can panic.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A condition variable, as [`std::sync::Condvar`]. It belongs to the environment in which it was created.
#[derive(Debug)]
pub struct Condvar {
    system: std::sync::Condvar,
    #[cfg(feature = "testing")]
    simulated: Option<(Handle, Event)>,
}

impl Condvar {
    /// Creates one that nothing waits for.
    pub fn new() -> Self {
        Self {
            system: std::sync::Condvar::new(),
            #[cfg(feature = "testing")]
            simulated: current().map(|simulation| {
                let event = simulation.event();
                (simulation, event)
            }),
        }
    }

    /// Wakes all that wait.
    #[inline]
    pub fn notify_all(&self) {
        #[cfg(feature = "testing")]
        if let Some((simulation, event)) = &self.simulated {
            return simulation.notify(*event);
        }
        self.system.notify_all();
    }

    /// Releases the lock of a mutex, waits until it is notified or the time is over, and locks it again. May return early.
    /// A panic of another thread that held the lock is ignored.
    #[inline]
    pub fn wait_timeout<'a, T>(
        &self,
        #[cfg_attr(not(feature = "testing"), expect(unused_variables))] mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> MutexGuard<'a, T> {
        #[cfg(feature = "testing")]
        if let Some((simulation, event)) = &self.simulated {
            // Whoever would wait for the lock is on the same thread.
            drop(guard);
            simulation.wait(&[*event], Some(timeout));
            return locked(mutex);
        }
        let waited = self.system.wait_timeout(guard, timeout);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

/// A thread that was started. Dropping this leaves it alone.
#[derive(Debug)]
pub enum Thread {
    /// A thread of the operating system.
    System(std::thread::JoinHandle<()>),
    /// A fiber of a simulation.
    #[cfg(feature = "testing")]
    Simulated(Fiber),
}

impl Thread {
    /// Starts a thread.
    ///
    /// # Errors
    ///
    /// When the operating system can't.
    pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        #[cfg(feature = "testing")]
        if let Some(simulation) = current() {
            return Ok(Self::Simulated(simulation.spawn(name, body)));
        }
        let thread = std::thread::Builder::new().name(name.to_owned());
        Ok(Self::System(thread.spawn(body)?))
    }

    /// Waits until it has ended. The hook of panics has reported a panic of it.
    pub fn join(self) {
        match self {
            Self::System(thread) => drop(thread.join()),
            #[cfg(feature = "testing")]
            Self::Simulated(fiber) => fiber.join(),
        }
    }
}

/// A thread that calls a function again and again, until this is dropped.
#[derive(Debug)]
pub(crate) struct Repeat {
    /// Whether the thread is to end.
    end: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<Thread>,
}

impl Repeat {
    /// Starts a thread that waits for `pause` before each call.
    pub(crate) fn spawn(
        name: &str,
        pause: Duration,
        mut call: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        let end = Arc::<(Mutex<bool>, Condvar)>::default();
        let of_thread = end.clone();
        let body = move || {
            let (is_ended, ended) = &*of_thread;
            let mut began = Instant::now();
            let mut guard = locked(is_ended);
            while !*guard {
                let left = pause.saturating_sub(began.elapsed());
                if left.is_zero() {
                    drop(guard);
                    call();
                    began = Instant::now();
                    guard = locked(is_ended);
                } else {
                    guard = ended.wait_timeout(is_ended, guard, left);
                }
            }
        };
        let thread = Some(Thread::spawn(name, body)?);
        Ok(Self { end, thread })
    }
}

impl Drop for Repeat {
    fn drop(&mut self) {
        *locked(&self.end.0) = true;
        self.end.1.notify_all();
        self.thread.take().into_iter().for_each(Thread::join);
    }
}
