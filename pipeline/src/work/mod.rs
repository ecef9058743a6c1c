//! What a traced model's step costs, operation by operation, as the planner takes it.

mod atoms;
mod blocks;
mod times;

pub(crate) use atoms::Atoms;
pub(crate) use blocks::{cast_bytes_by_path, parameter_homes, work_of};
pub use times::OperationTimes;
