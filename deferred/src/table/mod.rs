//! The parameters of a model as a table: found by path, counted, printed.

mod nearest;
mod parameter;
mod parameters;
mod summary;
mod text;

pub use nearest::UnknownPath;
pub(crate) use parameter::can_cast;
pub use parameter::{Origin, Parameter};
pub use parameters::ParameterTable;
pub use summary::{Entry, ModuleSummary, Summary, Totals};
pub use text::{SummaryTable, human_bytes, human_bytes_distinct};
