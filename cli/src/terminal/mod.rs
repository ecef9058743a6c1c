//! The terminal: output as text or JSON, escaped lines, tables that fit, and progress bars.

mod output;
mod text;

pub(crate) use output::{Output, show_table};
pub(crate) use text::{joined_while, name_of, one_line, read_text, say, visible};
