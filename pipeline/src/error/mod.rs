//! Errors of this crate.

mod acting;
mod calibrating;
mod carrying;
mod damage;
mod grouping;
mod outputs;
mod processes;
mod profiling;
mod ranks;
mod recovering;
mod restoring;
mod running;
mod starting;
mod state;
mod stepping;
mod streaming;
mod texts;

pub use acting::{ActionError, LinkError};
pub use calibrating::CalibrateError;
pub use carrying::CarryError;
pub use damage::DamageError;
pub use grouping::GroupError;
pub use outputs::OutputError;
pub use processes::ProcessError;
pub use profiling::ProfileError;
pub use ranks::RankError;
pub use recovering::RecoveryError;
pub use restoring::RestoreError;
pub use running::PipelineError;
pub use starting::StartError;
pub use state::StateError;
pub use stepping::StepError;
pub use streaming::StreamedError;
pub(crate) use texts::numbered;
