//! Errors of this crate.

mod certifying;
mod planning;
mod tracing;

pub use certifying::{CertifyError, CertifySite};
pub use planning::{ListsError, NotHeld, PlanError};
#[doc(hidden)]
pub use planning::{did_you_mean, joined, quoted};
pub use tracing::{BatchError, CarriedFault, StateFault, TraceError};
