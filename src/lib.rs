//! Builds Burn models without lighting them.

mod checkpoints;
mod error;

pub use checkpoints::{Checkpoints, Resumed};
pub use error::{CheckpointsError, LoadRankError, SaveRankError};
pub use tinderbox_checkpoint::{Checkpoint, LoadError, SaveError};
pub use tinderbox_deferred::{
    Deferred, DeferredError, MaterializeError, Parameter, ParameterPath, ParameterTable,
    PartialModule, Source, SourceError, Values, check_lit, parameter_values, random,
};
pub use tinderbox_fake::{
    DeviceLabel, DynTensor, Mode, RecordOptions, Region, TensorMeta, is_fake, record,
};
pub use tinderbox_pipeline::{
    Batch, BatchMapper, Cut, Machine, Outputs, Pipeline, PipelineError, Plan, PlanError,
    ScheduleKind, Stage, StepOutput, Trace, TraceError, Traceable, Whole, batch_struct,
    batch_tensors, split_batch,
};
