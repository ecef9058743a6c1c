//! The parameters of a model as a table: found by path, counted, printed.

mod nearest;
mod parameter;
mod parameters;

pub use nearest::UnknownPath;
pub use parameter::{Origin, Parameter};
pub use parameters::ParameterTable;
