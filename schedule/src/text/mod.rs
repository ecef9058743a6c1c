//! Schedules and actions as text: the text form, PyTorch's CSV and JSON.

mod cells;
mod csv;
mod detect;
mod error;
mod implied;
mod json;
mod rows;
mod words;

pub use error::{ParseError, TextPosition, WordFault};
