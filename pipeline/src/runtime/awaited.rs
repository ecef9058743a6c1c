//! A value that threads wait for.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tinderbox_world::clock::{Condvar, Instant};

/// A value with threads that wait for its changes.
#[derive(Debug, Default)]
pub(crate) struct Awaited<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Awaited<T> {
    /// Locks the value, which no change leaves halfway, also if it panics.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the value, and wakes all that wait.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// Waits until the value has what is looked for; `None` if it has not within the timeout.
    pub(crate) fn wait_for<R>(
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
                None => value = self.changed.wait_timeout(&self.value, value, left),
            }
        }
    }
}
