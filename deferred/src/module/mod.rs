//! Reading and filling the parameters of any Burn module.

mod fill;
mod partial;
mod visit;

pub use fill::check_lit;
pub(crate) use fill::{Expected, Slot, empty};
pub use partial::PartialModule;
pub use visit::parameter_values;
pub(crate) use visit::{Declared, Found, declarations, find, twins};
