//! The costs of a traced model's step, operation by operation, as input of the planner.

mod atoms;
mod blocks;
mod times;

pub(crate) use atoms::Atoms;
pub(crate) use blocks::{cast_bytes_by_path, parameter_homes, work_of};
pub use times::OperationTimes;
