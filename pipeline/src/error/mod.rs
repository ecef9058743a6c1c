//! Errors of this crate.

mod planning;
mod running;

pub use planning::{BatchError, NotHeld, PlanError, TraceError};
pub use running::{ActionError, LinkError, PipelineError, RestoreError};
