//! The runtime that trains the stages of a model, with traces, plans and schedules.
//!
//! A model is divided into stages. Each stage runs on a rank, which is a thread or a process. A batch is split into
//! micro-batches, so that several stages work at the same time.
//!
//! 1. [`Traceable`] records a deferred model and its forward, with Burn's own backward pass, as one joint graph.
//! 2. A [`Plan`] assigns the parameters and operations of the graph to stages.
//! 3. The graph is cut into the programs of each stage: a forward and a backward. The backward exists in two forms: whole, and
//!    split into the values for other stages and the gradients of the stage's own parameters.
//! 4. A [`schedule`] orders the programs on every rank.
//! 5. A [`Pipeline`] materializes the parameters from a `Source` of `tinderbox-deferred`, and runs the programs.
//!
//! This crate does not write checkpoints. [`Pipeline::on_ranks`] provides access to the stages of each rank.
//!
//! The example of the `tinderbox` crate shows the whole workflow. This example creates a plan from manual cuts:
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
//! // One training step has this batch, split into four micro-batches.
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
//! - The order in which gradients of micro-batches are added is a setting ([`GradientSum`]). It does not depend on the
//!   schedule, the stages or the replicas.
//! - One interpreter runs lists of actions on values of any kind. Another interpreter, in `tinderbox-graph`, certifies the
//!   lists, so that a fault of one of them is found by the other.
//! - Every wait of the runtime ends: when its message arrives, after a timeout whose error names the message, or immediately
//!   when another rank fails.
//!
//! # Limits
//!
//! - There are three kinds of ranks: threads of one process, processes of a [`World`](tinderbox_world::World) with one rank
//!   each, and a single rank that streams the stages of a model that does not fit in memory.
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
