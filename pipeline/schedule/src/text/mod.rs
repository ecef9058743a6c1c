//! Schedules and actions as text: the text form and PyTorch's CSV.

mod cells;
mod csv;
mod detect;
mod error;
mod implied;
mod rows;
mod words;

pub use error::{ParseError, TextPosition, WordFault};
