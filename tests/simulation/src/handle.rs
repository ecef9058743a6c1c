//! What fibers do: wait, notify, and start others.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::state::{Event, FiberId, Process, State};

thread_local! {
    static CURRENT: RefCell<Option<Handle>> = const { RefCell::new(None) };
}

/// Returns the simulation that runs this code; `None` in an ordinary thread.
#[must_use]
pub fn current() -> Option<Handle> {
    let current = CURRENT.try_with(|current| current.borrow().clone());
    current.ok().flatten()
}

/// A simulation, as its fibers use it. Clones are the same simulation.
#[derive(Clone, derive_more::Debug)]
pub struct Handle {
    #[debug("now: {:?}", self.now())]
    state: Arc<Mutex<State>>,
    /// The virtual time 0 as a point of the system's clock.
    #[debug(skip)]
    start: Instant,
}

impl Handle {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            state: Arc::new(Mutex::new(State::new(seed))),
            start: Instant::now(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the virtual time since the start.
    pub fn now(&self) -> Duration {
        self.state().now()
    }

    /// Returns the virtual time for code that counts with [`Instant`]s. Only differences of them are deterministic.
    pub fn instant(&self) -> Instant {
        self.start + self.now()
    }

    /// Creates an event.
    #[must_use]
    pub fn event(&self) -> Event {
        self.state().event()
    }

    /// Wakes the fibers that wait for an event.
    pub fn notify(&self, event: Event) {
        self.state().notify(event);
    }

    /// Waits until one of the events is notified or the timeout has passed; without a timeout, or with one that the clock
    /// can't count, until a notification. Returns whether there was one.
    ///
    /// # Panics
    ///
    /// When no fiber of this simulation calls it: an action can't wait.
    pub fn wait(&self, events: &[Event], timeout: Option<Duration>) -> bool {
        let mut state = self.state();
        let fiber = state.suspend(events, timeout);
        if std::thread::panicking() {
            // The other fibers would take this panic for theirs, so the simulation ends.
            let message = "it waits while it unwinds; its message was printed before";
            state.fail(message.to_owned());
        }
        drop(state);
        let fiber = fiber.expect("only a fiber waits");
        #[expect(
            deprecated,
            reason = "the scope that replaces it would have to be passed through all code that waits"
        )]
        generator::yield_with(());
        self.state().is_notified(fiber)
    }

    /// Waits until some time has passed.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    pub fn sleep(&self, duration: Duration) {
        self.wait(&[], Some(duration));
    }

    /// Returns the process of the fiber or action that runs.
    pub fn process(&self) -> Option<Process> {
        self.state().process
    }

    /// Starts a fiber in the process of what runs.
    ///
    /// # Panics
    ///
    /// When nothing of this simulation runs.
    pub fn spawn(&self, name: impl Into<String>, body: impl FnOnce() + Send + 'static) -> Fiber {
        let process = self.state().process;
        self.spawn_in(process.expect("a fiber or an action runs"), name, body)
    }

    /// Starts a fiber in a process.
    pub fn spawn_in(
        &self,
        process: Process,
        name: impl Into<String>,
        body: impl FnOnce() + Send + 'static,
    ) -> Fiber {
        let mut state = self.state();
        let fiber = state.add_fiber(process, name.into());
        state.spawned.push((fiber, Box::new(body)));
        drop(state);
        Fiber {
            simulation: self.clone(),
            fiber,
        }
    }

    /// Runs an action at a virtual time, or now if it has passed; later if the process is paused then. The action can't
    /// wait. It does not run if all fibers have ended before.
    pub fn at(&self, process: Process, time: Duration, action: impl FnOnce() + Send + 'static) {
        self.state().add_action(process, time, Box::new(action));
    }

    /// Pauses a process for some time: its fibers and actions do not run, and continue with what they missed. A fiber that
    /// pauses its own process runs until it waits.
    pub fn pause(&self, process: Process, duration: Duration) {
        self.state().pause(process, duration);
    }

    /// Returns a random number less than `limit`; 0 if the limit is 0.
    #[must_use]
    pub fn random(&self, limit: u64) -> u64 {
        self.state().random.below(limit)
    }

    /// Returns a random time up to `most`.
    #[must_use]
    pub fn random_time(&self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.random(most.saturating_add(1)))
    }
}

/// A fiber that was started. Dropping this leaves it alone.
#[derive(Debug)]
pub struct Fiber {
    simulation: Handle,
    fiber: FiberId,
}

impl Fiber {
    /// Waits until the fiber has ended.
    ///
    /// # Panics
    ///
    /// As [`Handle::wait`].
    pub fn join(self) {
        while self.simulation.state().is_alive(self.fiber) {
            self.simulation.wait(&[State::end_of(self.fiber)], None);
        }
    }
}

/// Makes a simulation the current one of this thread while it exists.
pub(crate) struct Entered(());

impl Entered {
    pub(crate) fn new(simulation: &Handle) -> Self {
        let before = CURRENT.replace(Some(simulation.clone()));
        assert!(before.is_none(), "a simulation runs no other one");
        Self(())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}
