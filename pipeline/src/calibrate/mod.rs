//! Measures a machine for planning.

mod processes;
mod threads;

pub use processes::calibrate_world;
pub use threads::calibrate;
