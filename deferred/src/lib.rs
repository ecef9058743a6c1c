//! Deferred modules, the executor, and materialization.
mod deferred;
mod error;
mod module;
mod parameter;
mod path;
mod program;
pub mod random;
mod replay;
mod source;

pub use deferred::{Deferred, materialize_parameters};
pub use error::{DeferredError, MaterializeError, Mismatch, Mismatches, ProgramError, SourceError};
pub use module::{PartialModule, check_lit, parameter_values};
pub use parameter::{Origin, Parameter, ParameterTable};
pub use path::ParameterPath;
pub use program::{Executable, Executor, Program, RandomKey, RandomKeys, RunContext, is_random};
pub use replay::{Replay, Values, initialization_keys};
pub use source::{Request, Source};
