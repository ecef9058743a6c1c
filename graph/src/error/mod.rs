//! Errors of this crate.

mod certifying;
mod listing;
mod planning;
mod texts;
mod tracing;

pub use certifying::{CertifyError, CertifySite};
pub use listing::ListsError;
#[doc(hidden)]
pub use planning::did_you_mean;
pub use planning::{NotHeld, PlanError};
#[doc(hidden)]
pub use texts::{joined, quoted};
pub use tracing::{BatchError, CarriedFault, StateFault, TraceError};
