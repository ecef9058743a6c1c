//! The terminal: output as text or JSON, escaped lines, tables that fit, and progress bars.

mod bar;
mod input;
mod output;
mod table;
mod text;

pub(crate) use bar::Bar;
pub(crate) use input::{name_of, read_text};
pub(crate) use output::{Output, OutputFlags};
pub(crate) use table::Columns;
pub(crate) use text::{ShownPath, one_line, say, say_error, visible};
