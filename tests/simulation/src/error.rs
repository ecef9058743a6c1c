//! The error of this crate.

use std::time::Duration;

use thiserror::Error;

/// The reason why a simulation has stopped before all its fibers ended. Every variant has the seed that shows it again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// Nothing can wake the fibers that are left, or they have not ended within the limits of the simulation.
    #[error(
        "seed {seed}: {} left after {now:?} and {steps} steps: {}",
        match fibers.len() { 1 => "1 fiber is".to_owned(), count => format!("{count} fibers are") },
        fibers.join(", ")
    )]
    Endless {
        /// The seed.
        seed: u64,
        /// The virtual time.
        now: Duration,
        /// How many times a fiber or an action has run.
        steps: u64,
        /// The fibers that are left, with what each waits for.
        fibers: Vec<String>,
    },
    /// A fiber or an action panicked.
    #[error("seed {seed}: {fiber} panicked after {now:?}: {message}")]
    Panicked {
        /// The seed.
        seed: u64,
        /// The virtual time.
        now: Duration,
        /// The fiber.
        fiber: String,
        /// The message of the panic.
        message: String,
    },
}
