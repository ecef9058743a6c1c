//! The recorded forward and backward of a model, per mode and batch shapes.

mod call;
mod checks;
mod forward;
mod joint;
mod outputs;
mod record;
mod states;
mod traceable;

pub use joint::{ForwardOperations, Given, JointGraph, ProgramKey, Role, TracedInput};
pub use outputs::{LossOver, Outputs};
pub use traceable::{KEPT_PROGRAMS, MixedPrecision, Trace, Traceable};
