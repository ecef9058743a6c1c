//! Deferred modules, the executor, and materialization.

mod error;
mod path;
mod source;

pub use error::{Mismatch, Mismatches, SourceError};
pub use path::ParameterPath;
pub use source::{Request, Source};
