//! Terminal output: escaped lines, tables that fit the terminal, and progress bars.

mod bar;
mod table;
mod text;

pub(crate) use bar::Bar;
pub(crate) use table::Columns;
pub(crate) use text::{one_line, say, say_error, visible};
