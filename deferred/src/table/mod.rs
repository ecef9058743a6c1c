//! The parameters of a model as a table: found by path, counted, printed.

mod nearest;
mod parameters;
mod summary;
mod text;

pub use nearest::UnknownPath;
pub(crate) use parameters::can_cast;
pub use parameters::{Origin, Parameter, ParameterTable};
pub use summary::{Entry, ModuleSummary, Summary, Totals};
