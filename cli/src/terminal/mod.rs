//! The terminal: output as text or JSON, escaped lines, tables that fit, progress bars, and the files that commands read.

mod contents;
mod output;
mod text;

pub(crate) use contents::unexpected;
pub(crate) use output::{Output, show_table};
pub(crate) use text::{joined_while, name_of, one_input, one_line, read_text, say, visible};
