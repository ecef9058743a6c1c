//! What the program prints: lines without surprises, tables that fit, and how far work is.

mod bar;
mod table;
mod text;

pub(crate) use bar::Bar;
pub(crate) use table::Columns;
pub(crate) use text::{one_line, say, say_error, visible};
