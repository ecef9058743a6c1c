//! Traces, plans, schedules, and the runtime that trains pipeline stages.
//!
//! A deferred model and its forward are recorded as one joint graph with Burn's own backward pass. A
//! [`Plan`] assigns parameters and operations to stages. The graph is cut into a forward and a backward
//! program per stage, the backward whole and split. A [`schedule`] orders the programs on every rank,
//! and a [`Pipeline`] runs them.
//!
//! This crate does not write checkpoints: [`Pipeline::on_ranks`] provides access to each rank's stages.
//! Parameters are materialized from a `Source` of `tinderbox-deferred`.
//!
//! The example of the `tinderbox` crate shows the whole workflow. A manual plan:
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::{Device, Tensor};
//! use tinderbox_deferred::Deferred;
//! use tinderbox_pipeline::{Cut, Outputs, Traceable};
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     layers: Vec<Linear>,
//! }
//!
//! let model = Deferred::new(|device| Net {
//!     layers: (0..4).map(|_| LinearConfig::new(8, 8).init(device)).collect(),
//! })?;
//! // The batch of a step, in four micro-batches.
//! let batch = Tensor::<2>::zeros([8, 8], &Device::flex());
//! let trace = model.trace(&batch, 4, |net: &Net, x| {
//!     let y = net.layers.iter().fold(x, |x, layer| layer.forward(x));
//!     Outputs::loss(y.mean())
//! })?;
//! let plan = trace.plan_at(&[Cut::before("layers.1"), Cut::after("layers.2")])?;
//! assert_eq!(plan.stages[1].modules, ["layers.1", "layers.2"]);
//! assert!(plan.to_string().contains("layers.1 layers.2"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Modules
//!
//! In order: a module uses only modules before it. `error` is not in the list: it may name types of any module.
//!
//! ```text
//! broadcast profile runtime calibrate testing
//! ```
//!
//! Traces, cuts, certification and plans are in `tinderbox-graph`.
//!
//! # Architecture invariants
//!
//! - Gradients of micro-batches are added in an order that is a setting ([`GradientSum`]), whatever the schedule, the stages
//!   and the replicas.
//! - One interpreter runs lists of actions on values of any kind. Another one, in `tinderbox-graph`, certifies the lists.
//! - Every wait of the runtime ends: with its message, by a timeout that names the message, or
//!   immediately when another rank fails.
//!
//! # Limits
//!
//! - The ranks are threads of one process, or each is a process of a [`World`](tinderbox_world::World), or one rank streams the
//!   stages of a model that does not fit in memory.
//! - Data-dependent shapes and control flow can't be traced; see [`TraceError`].
//!
//! # Features
//!
//! - `metis`: plans by METIS.
//! - `grpc`: processes that are connected by gRPC.
//! - `testing`: the module `testing`, which checks custom links and batches.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod broadcast;
mod calibrate;
mod error;
mod profile;
mod runtime;
#[cfg(any(test, feature = "testing"))]
#[cfg_attr(docsrs, doc(cfg(feature = "testing")))]
pub mod testing;

pub use broadcast::PlanBroadcast;
pub use calibrate::{calibrate, calibrate_world};
pub(crate) use error::ActionResult;
pub use error::{
    ActionError, CalibrateError, CarryError, DamageError, GroupError, LinkError, OutputError,
    PipelineError, ProcessError, ProfileError, RankError, RecoveryError, RestoreError, StartError,
    StateError, StepError, StreamedError,
};
pub use profile::{BlockProfile, BlockSizes, PROFILE_VERSION, Profile, Profiler, Spread};
pub use runtime::{
    AnyPrecisionAdamW, AnyPrecisionState, Carry, Clipping, Evaluation, Link, LinkMessage,
    LocalLink, LossScale, MomentDType, OnDemand, OptimizerConfig, OptimizerSnapshot, OutputsOn,
    Pipeline, PipelineBuilder, ProgramDigest, Recovered, Recovery, Repaired, ReplayComparison,
    ReplayDifference, ReplayedOperation, ReplayedProgram, Resident, SavedOptimizer, SavedState,
    Stage, StageStore, StateDigest, StateFields, StatePart, StateTensor, StepOutput, StepRates,
    StepReplay, Streamed, StreamedBuilder, StreamedTraining, Tag, UpdatedStage,
};
/// The names that `#[derive(Batch)]` uses.
#[doc(hidden)]
pub use tinderbox_graph::batch;
pub use tinderbox_graph::{
    Along, Batch, BatchError, BatchMapper, Carried, CarriedFault, CertifyError, CertifySite, Cut,
    Division, GradientSum, JointGraph, Leaf, LeafName, ListsError, LossOver, MixedPrecision,
    NotHeld, OperationTimes, Outputs, PlanError, Planner, ProgramKey, ScheduleChoice, StateFault,
    Trace, TraceError, Traceable, TracedInput, Whole, batch_on, batch_tensors, check_materialized,
    check_model, split_batch,
};
pub(crate) use tinderbox_graph::{
    certify, cut, did_you_mean, kept, lists, plan, recent, sum, trace,
};
/// Costs, machines, partitioners, predictions and plan files, without Burn.
pub use tinderbox_planner as planner;
pub use tinderbox_planner::{
    Boundary, DiskRate, Machine, MemoryBudget, Partitioner, Plan, PlanStage, RankModel,
};
/// Schedules as data: generated, parsed, lowered, verified, simulated, drawn.
pub use tinderbox_schedule as schedule;
pub use tinderbox_schedule::{Placement, ScheduleKind};
