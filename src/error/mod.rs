//! Every error of the libraries. [`Error`] is any of them, for programs that handle them alike.

mod checkpoints;
mod compare;
mod generate;
mod program;
mod session;

pub use checkpoints::{CheckpointsError, DryRunError, SettingDifference};
pub use compare::CompareError;
pub use generate::GenerateError;
pub use program::Error;
pub use session::SessionError;
#[cfg(feature = "signals")]
#[cfg_attr(docsrs, doc(cfg(feature = "signals")))]
pub use session::SignalError;
#[cfg(feature = "object-store")]
#[cfg_attr(docsrs, doc(cfg(feature = "object-store")))]
pub use tinderbox_checkpoint::store::BucketError;
pub use tinderbox_checkpoint::tools::ToolError;
pub use tinderbox_checkpoint::{
    FormatError, HeaderError, LayoutError, LoadError, SaveError, StoreError,
};
pub use tinderbox_deferred::random::RandomError;
pub use tinderbox_deferred::{
    DeferredError, DeviceError, MaterializeError, ProgramError, RecipeError, SourceError,
    UnknownPath,
};
pub use tinderbox_fake::{ExecutionError, FakeError, GraphFileError, RecordError, RegionError};
pub use tinderbox_pipeline::planner::{
    FileError, Infeasible, MachineError, ModelDifference, PlanFileError, PlannerError, StreamError,
    UnknownPartitioner, UnknownSize, WorkError,
};
pub use tinderbox_pipeline::schedule::{
    AutoError, LinkModelError, ParseError, ScheduleKindError, VerifyError,
};
pub use tinderbox_pipeline::{
    ActionError, BatchError, CalibrateError, CarriedFault, CarryError, CertifyError, DamageError,
    GroupError, LinkError, ListsError, OutputError, PipelineError, PlanError, ProcessError,
    ProfileError, RankError, RecoveryError, RestoreError, StartError, StateError, StateFault,
    StepError, StreamedError, TraceError,
};
pub use tinderbox_world::link::{CrewError, MailboxError};
pub use tinderbox_world::{EnvironmentError, FrameError, NodeListError, WorldError};
