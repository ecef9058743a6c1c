//! Engines of a [`World`](tinderbox_world::World) for tests, with faults: [`Threads`] between the threads of one process, and
//! [`Simulated`] between the processes of a simulation.
//!
//! Frames are delayed by random times, and connections end when a test cuts them. Threads can be stopped, and simulated
//! processes killed, paused or slowed down.

mod simulated;
mod threads;

pub use simulated::{Simulated, SimulatedNet};
pub use threads::{Delays, Net, Threads};
