//! Errors of this crate.

mod acting;
mod calibrating;
mod carrying;
mod certifying;
mod damage;
mod grouping;
mod outputs;
mod planning;
mod profiling;
mod restoring;
mod running;
mod streaming;
mod texts;
mod tracing;

pub use acting::{ActionError, LinkError};
pub use calibrating::CalibrateError;
pub use carrying::CarryError;
pub use certifying::{CertifyError, CertifySite};
pub use damage::DamageError;
pub use grouping::GroupError;
pub use outputs::OutputError;
pub use planning::{NotHeld, PlanError};
pub use profiling::ProfileError;
pub use restoring::RestoreError;
pub use running::PipelineError;
pub use streaming::StreamedError;
pub(crate) use texts::numbered;
pub use tracing::{BatchError, CarriedFault, StateFault, TraceError};
