//! Cuts the work of a training step into pipeline stages.
//!
//! [`Work`] describes a training step of a model: blocks with times, parameters and the values that
//! flow between them. A partitioner assigns blocks to stages and stages to ranks ([`Partition`]);
//! [`predict()`] simulates the result with `tinderbox-schedule`; a [`Plan`] stores it.
//!
//! This crate does not depend on Burn: `tinderbox-graph` computes the work of a traced model and
//! cuts its graph by the plan.
//!
//! # Modules
//!
//! A module uses only the modules before it in this list. `error` is not in the list: it may name types of any module.
//!
//! ```text
//! files table work machine step cost_model predict partition plan stream
//! ```
//!
//! # Features
//!
//! - `metis`: the partitioner of that name, built from the C sources of METIS.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod cost_model;
mod error;
#[doc(hidden)]
pub mod files;
mod machine;
mod partition;
mod plan;
mod predict;
mod step;
mod stream;
mod table;
mod work;

pub use error::{
    FileError, Infeasible, MachineError, PlanFileError, PlannerError, StreamError,
    UnknownPartitioner, WorkError,
};
pub use machine::{DiskRate, Machine, RankModel, Rates};
pub use partition::{
    Chained, Choice, Partitioner, Planned, chain, chain_by_model, fine, partition,
};
pub use plan::{
    Boundary, Change, ModelDifference, PLAN_VERSION, Plan, PlanDiff, PlanParameter, PlanProgram,
    PlanStage, PlanValue, TieGroup,
};
pub use predict::{
    PartitionCosts, Predicted, Prediction, RankMemory, RankPrediction, StageBytes, UPDATE_VALUES,
    lower_bound, partition_costs, predict, predict_costs,
};
pub use step::{Partition, Step};
pub use stream::{
    MemoryBudget, StreamItem, StreamPlan, StreamPrediction, StreamState, StreamStep, StreamVisit,
};
#[doc(hidden)]
pub use table::table;
pub use tinderbox_ids::text::UnknownSize;
pub use work::{Block, Parameter, Value, Work};
