//! Reading and filling the parameters of any Burn module.

mod fill;
mod partial;
mod visit;

pub use fill::check_lit;
pub(crate) use fill::{Slot, fill};
pub use partial::PartialModule;
pub(crate) use visit::find;
pub use visit::parameter_values;
