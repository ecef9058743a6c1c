//! Threads, clocks and delays of many processes in one thread, in an order that one seed decides.
//!
//! A [`Simulation`] runs fibers: functions that wait and continue as threads do, each on a stack of its own, but one at a
//! time and on one thread of the operating system. When a fiber waits, a random number decides which one runs next. Time
//! is virtual: it passes only when all fibers wait, to the moment when the next one is due. A test of hours takes
//! milliseconds, and the same seed runs every step again.
//!
//! Code that also runs outside of a simulation asks [`current`] whether it is in one, and waits by the [`Handle`] instead
//! of by the operating system.
//!
//! It is no model checker: it tries random orders of events, and a fiber is interrupted only where it waits. It has no
//! network and no files; what simulates them uses [`Handle::at`], to act at a time, and [`Handle::random`].
//!
//! ```
//! use std::time::Duration;
//! use tinderbox_simulation::{Process, Simulation, SimulationError, current};
//!
//! let mut order = Vec::new();
//! let mut simulation = Simulation::new(7);
//! simulation.start(Process::new(0), "first", || {
//!     let simulation = current().expect("a fiber is simulated");
//!     let ready = simulation.event();
//!     let other = simulation.spawn("second", {
//!         let simulation = simulation.clone();
//!         move || {
//!             simulation.sleep(Duration::from_secs(3600));
//!             simulation.notify(ready);
//!         }
//!     });
//!     assert!(simulation.wait(&[ready], None));
//!     other.join();
//!     order.push(simulation.now());
//! });
//! let report = simulation.run()?;
//! assert_eq!(order, [Duration::from_secs(3600)]);
//! assert_eq!(report.elapsed, Duration::from_secs(3600));
//! assert!(current().is_none());
//! # Ok::<(), SimulationError>(())
//! ```
//!
//! # Modules
//!
//! In order: a module uses only those before it. `error` is not in the list: it may name types of any module.
//!
//! ```text
//! random state handle simulation
//! ```
//!
//! # Architecture invariants
//!
//! - The state is plain data behind a lock. Only the scheduler, on the thread of [`Simulation::run`], owns the stacks of
//!   fibers.
//! - Nothing reads the system's clock or the system's random numbers, and nothing depends on an address: the seed and the
//!   program decide every step. [`Report::digest`] is a hash of all steps.
//! - Between two waits, a fiber is alone: what it checks is still true when it begins to wait. No wake-up can be lost
//!   between the check and the wait.
//!
//! # Limits
//!
//! - A fiber must not hold a lock of the system while it waits, or wait for another thread: the fiber that could release
//!   it never runs.
//! - What a fiber computes takes no virtual time.
//! - A simulation that fails leaks the stacks of the fibers that are left: to free them, they would have to unwind.
//! - A panic ends the simulation. One that the fiber catches itself does not, as long as nothing waits while it unwinds.

mod error;
mod handle;
mod random;
mod simulation;
mod state;

pub use error::SimulationError;
pub use handle::{Fiber, Handle, current};
pub use random::Random;
pub use simulation::Simulation;
pub use state::{Event, Process, Report};
