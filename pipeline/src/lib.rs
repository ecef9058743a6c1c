//! Traces, plans, schedules, and the runtime that trains pipeline stages.

mod batch;
mod cost;
mod cut;
mod error;
mod partition;
mod plan;
mod runtime;
pub mod schedule;
mod trace;

pub use batch::{Batch, BatchMapper, Division, Leaf, LeafName, Whole, batch_tensors, split_batch};
pub use cost::flops;
pub use error::{
    ActionError, BatchError, LinkError, PipelineError, PlanError, RestoreError, TraceError,
};
pub use partition::{Chain, Cut, Unit};
pub use plan::{Boundary, Machine, Plan, PlanStage};
pub use runtime::{
    Abort, Group, Link, LocalLink, OptimizerState, Pipeline, PipelineBuilder, RankEnded, RankSetup,
    Request, SavedState, ScheduleKind, SoloGroup, Stage, StepOutput, Tag, local_links, run_rank,
};
pub use trace::{JointGraph, Outputs, ProgramKey, Role, Roles, Trace, Traceable, TracedInput};
