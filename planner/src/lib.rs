//! Cuts the work of a training step into pipeline stages.
//!
//! A model's step comes as [`Work`]: blocks with times, parameters and the values that flow between
//! them. A partitioner says which stage runs each block and which rank each stage ([`Partition`]);
//! [`predict()`] says what that takes, by the simulator of `tinderbox-schedule`; a [`PlanFile`] keeps it.
//!
//! This crate knows nothing of Burn: `tinderbox-pipeline` makes the work of a traced model and cuts its
//! graph as the plan says.
//!
//! | room | what is in it |
//! |---|---|
//! | `work` | blocks, parameters, values |
//! | `machine` | ranks, their memory and speed, links, rates |
//! | `step` | schedule and micro-batches; a partition into stages |
//! | `predict` | what a partition takes: time, bubbles, memory, and the lower bound |
//! | `partition` | the partitioners |
//! | `plan` | the plan file, and its views |

mod error;
mod machine;
mod partition;
mod plan;
mod predict;
mod step;
mod work;

pub use error::{
    Infeasible, MachineError, PlanFileError, PlannerError, UnknownPartitioner, WorkError,
};
pub use machine::{Machine, RankModel, Rates};
#[doc(hidden)]
pub use partition::chain_cases;
pub use partition::{Chained, Partitioner, Planned, chain, partition};
pub use plan::{
    Boundary, Change, Choice, ModelDifference, PLAN_VERSION, PlanDiff, PlanFile, PlanParameter,
    PlanProgram, PlanStage, PlanValue, TieGroup,
};
pub use predict::{
    PartitionCosts, Predicted, Prediction, RankMemory, RankPrediction, StageBytes, lower_bound,
    over_limit, partition_costs, predict, predict_costs,
};
pub use step::{Partition, Step};
pub use work::{Block, Parameter, Value, Work};
