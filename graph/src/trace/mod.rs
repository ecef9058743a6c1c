//! The recorded forward and backward of a model, per mode and batch shapes.

mod call;
mod carried;
mod checks;
mod forward;
mod joint;
mod key;
mod layers;
mod mixed;
mod operations;
mod outputs;
mod record;
mod roles;
mod states;
mod traceable;
mod twice;

pub use joint::Given;
pub use joint::{JointGraph, TracedInput};
pub use key::ProgramKey;
pub use mixed::MixedPrecision;
pub use operations::{ForwardOperations, Role};
pub use outputs::{LossOver, Outputs};
pub use traceable::KEPT_PROGRAMS;
pub use traceable::{Trace, Traceable};
