//! Errors of this crate.

mod profiling;
mod ranks;
mod running;
mod starting;
mod state;
mod stepping;
mod texts;

pub use profiling::{CalibrateError, ProfileError};
pub(crate) use ranks::ActionResult;
pub use ranks::{ActionError, DamageError, LinkError, ProcessError, RankError};
pub use running::PipelineError;
pub(crate) use running::Result;
pub use starting::{GroupError, StartError, StreamedError};
pub use state::{RecoveryError, RestoreError, StateError};
pub use stepping::{CarryError, OutputError, StepError};
pub(crate) use texts::numbered;
