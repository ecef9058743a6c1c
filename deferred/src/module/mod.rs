//! Reading and filling the parameters of any Burn module.

mod fields;
mod fill;
mod partial;
mod placeholders;
mod visit;

pub use fields::{skipped_parameters, tensor_fields};
pub use fill::check_materialized;
pub(crate) use fill::{Expected, Slot, empty};
pub use partial::PartialModule;
pub use placeholders::Placeholders;
pub use visit::parameter_values;
pub(crate) use visit::{Declared, Found, declarations, find, twins};
