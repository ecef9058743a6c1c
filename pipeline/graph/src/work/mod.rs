//! The costs of a traced model's step, operation by operation, as input of the planner.

mod blocks;
mod groups;
mod times;

pub use blocks::{parameter_positions, work_of};
pub use groups::OperationGroups;
pub use times::OperationTimes;
