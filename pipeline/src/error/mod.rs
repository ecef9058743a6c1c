//! Errors of this crate.

mod calibrating;
mod planning;
mod profiling;
mod running;

pub use calibrating::CalibrateError;
pub use planning::{BatchError, NotHeld, PlanError, TraceError};
pub use profiling::ProfileError;
pub use running::{ActionError, LinkError, PipelineError, RestoreError};
