//! Reading and filling the parameters of any Burn module.

mod batch_norms;
mod fields;
mod fill;
mod map;
mod partial;
mod placeholders;
mod visit;

pub use fields::{pending_states, skipped_parameters, tensor_fields};
pub(crate) use fill::Emptied;
pub use partial::PartialModule;
pub use placeholders::{Placeholders, PlainStates};
pub(crate) use visit::{Declared, Found, declarations, find};
pub use visit::{check_materialized, parameter_values};
