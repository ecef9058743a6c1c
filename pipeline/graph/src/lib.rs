//! The graph of a training step: recorded, planned, cut into programs and certified, without threads, processes or clocks.
//!
//! `tinderbox-pipeline` runs the programs and lists of this crate, and exports the names that users need; its page has
//! examples. The modules are public for it.
//!
//! # Modules
//!
//! In order: a module uses only modules before it. `error` is not in the list: it may name types of any module.
//!
//! ```text
//! recent batch sum trace partition lists kept cut certify work plan
//! ```
//!
//! `cut` is before `plan`, which contains costs and texts of the programs.
//!
//! # Architecture invariants
//!
//! - No threads, processes, clocks or files. Functions are pure, except functions that call the forward of a user's model on
//!   fake tensors. A trace keeps the graphs of recent shapes.
//! - A value crosses between two programs only if the plan's boundaries list it.
//! - Data flows backward only from higher stages to lower ones, so no cut can deadlock.
//! - Before programs or lists run for the first time, both run on hashes instead of tensors. Every value must have the hash
//!   that it has in the recorded graph: [`CertifyError`].
//!
//! # Features
//!
//! - `metis`: plans by METIS.

#[doc(hidden)]
pub mod batch;
#[doc(hidden)]
pub mod certify;
#[doc(hidden)]
pub mod cut;
mod error;
#[doc(hidden)]
pub mod kept;
#[doc(hidden)]
pub mod lists;
#[doc(hidden)]
pub mod partition;
#[doc(hidden)]
pub mod plan;
#[doc(hidden)]
pub mod recent;
#[doc(hidden)]
pub mod sum;
#[doc(hidden)]
pub mod trace;
#[doc(hidden)]
pub mod work;

pub use batch::{
    Along, Batch, BatchMapper, Carried, Division, Leaf, LeafName, Whole, batch_on, batch_tensors,
    split_batch,
};
pub use error::{
    BatchError, CarriedFault, CertifyError, CertifySite, ListsError, NotHeld, PlanError,
    StateFault, TraceError,
};
#[doc(hidden)]
pub use error::{did_you_mean, joined, quoted};
pub use lists::ScheduleChoice;
pub use partition::Cut;
pub use plan::{Planner, check_materialized, check_model};
pub use sum::GradientSum;
pub use tinderbox_derive::Batch;
pub use tinderbox_planner as planner;
pub use tinderbox_planner::{Machine, Plan};
pub use tinderbox_schedule as schedule;
pub use trace::{
    JointGraph, LossOver, MixedPrecision, Outputs, ProgramKey, Trace, Traceable, TracedInput,
};
pub use work::OperationTimes;
