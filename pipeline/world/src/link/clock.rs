//! The clock, the waits and the threads of a process: of the operating system, or with the feature `simulation` of the
//! simulation in which the process runs.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(feature = "simulation")]
use tinderbox_simulation::{Event, Fiber, Handle, current};

/// Returns whether this code runs in a simulation, whose processes and threads share one thread of the operating system.
#[must_use]
pub fn is_simulated() -> bool {
    #[cfg(feature = "simulation")]
    if current().is_some() {
        return true;
    }
    false
}

/// A point in time. It corresponds to [`std::time::Instant`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(std::time::Instant);

impl Instant {
    /// Returns the present time.
    #[inline]
    #[must_use]
    pub fn now() -> Self {
        #[cfg(feature = "simulation")]
        if let Some(simulation) = current() {
            return Self(simulation.instant());
        }
        Self(std::time::Instant::now())
    }

    /// Returns the time since this point.
    #[inline]
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Self::now().0.saturating_duration_since(self.0)
    }

    /// Returns the point in time `timeout` from now.
    pub(crate) fn after(timeout: Duration) -> Self {
        // Longer than any run, and within the range of the clock of every system.
        const YEARS: Duration = Duration::from_secs(1 << 30);
        let Self(now) = Self::now();
        Self(now.checked_add(timeout).unwrap_or_else(|| now + YEARS))
    }

    /// Returns the time until this point.
    pub(crate) fn left(&self) -> Duration {
        self.0.saturating_duration_since(Self::now().0)
    }
}

/// Wakes the fibers that wait for an event, if it was created in a simulation. Clones wake the same fibers.
#[derive(Clone, Debug)]
pub(crate) struct Wake {
    #[cfg(feature = "simulation")]
    pub(crate) simulated: Option<(Event, Handle)>,
}

impl Wake {
    /// Creates an event that no fiber waits for.
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(feature = "simulation")]
            simulated: current().map(|simulation| (simulation.event(), simulation)),
        }
    }

    /// Wakes all waiting fibers.
    #[inline]
    pub(crate) fn notify(&self) {
        #[cfg(feature = "simulation")]
        if let Some((event, simulation)) = &self.simulated {
            simulation.notify(*event);
        }
    }
}

/// A value whose changes threads can wait for. It belongs to the environment in which it was created.
///
/// A panic of a thread that holds the lock is ignored, so every change must be complete before an operation that can panic.
#[derive(Debug)]
pub struct Awaited<T> {
    value: Mutex<T>,
    changed: Condvar,
    wake: Wake,
}

impl<T> Awaited<T> {
    /// Creates a value that no thread waits for.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            changed: Condvar::new(),
            wake: Wake::new(),
        }
    }

    /// Locks the value.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock()
    }

    /// Changes the value, and wakes all waiting threads.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.lock());
        self.notify_all();
        result
    }

    /// Wakes all waiting threads.
    #[inline]
    pub fn notify_all(&self) {
        self.wake.notify();
        self.changed.notify_all();
    }

    /// Releases the lock of the value, waits for a change or until the timeout, and locks it again. May return early.
    #[inline]
    pub fn wait(&self, value: &mut MutexGuard<'_, T>, timeout: Duration) {
        #[cfg(feature = "simulation")]
        if let Some((event, simulation)) = &self.wake.simulated {
            // All fibers are on one thread, so none of them waits for the lock.
            MutexGuard::unlocked(value, || simulation.wait(&[*event], Some(timeout)));
            return;
        }
        self.changed.wait_for(value, timeout);
    }

    /// Waits until `look` finds something in the value; `None` if it does not within the timeout.
    pub fn wait_for<R>(
        &self,
        timeout: Duration,
        mut look: impl FnMut(&mut T) -> Option<R>,
    ) -> Option<R> {
        let began = Instant::now();
        let mut value = self.lock();
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            match look(&mut value) {
                Some(found) => return Some(found),
                None if left.is_zero() => return None,
                None => self.wait(&mut value, left),
            }
        }
    }
}

impl<T: Default> Default for Awaited<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// A running thread. Dropping it detaches the thread.
#[derive(Debug)]
pub enum Thread {
    /// A thread of the operating system.
    System(JoinHandle<()>),
    /// A fiber of a simulation.
    #[cfg(feature = "simulation")]
    Simulated(Fiber),
}

impl Thread {
    /// Starts a thread.
    ///
    /// # Errors
    ///
    /// When the operating system can't start a thread.
    pub fn spawn(name: impl Into<String>, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        #[cfg(feature = "simulation")]
        if let Some(simulation) = current() {
            return Ok(Self::Simulated(simulation.spawn(name, run)));
        }
        let thread = std::thread::Builder::new().name(name.into());
        Ok(Self::System(thread.spawn(run)?))
    }

    /// Waits until the thread has ended. The panic hook has reported its panic, if there was one.
    pub fn join(self) {
        match self {
            Self::System(thread) => drop(thread.join()),
            #[cfg(feature = "simulation")]
            Self::Simulated(fiber) => fiber.join(),
        }
    }
}
