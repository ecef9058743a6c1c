//! Reading and filling the parameters of any Burn module.

mod batch_norms;
mod copy;
mod fields;
mod fill;
mod layers;
mod map;
mod param;
mod partial;
mod placeholders;
mod visit;

pub use copy::independent_copy;
pub use fields::{pending_states, skipped_parameters, tensor_fields};
pub(crate) use fill::fill;
pub use layers::{TrainingLayer, training_layers};
pub(crate) use param::Declared;
pub use partial::PartialModule;
pub use placeholders::Placeholders;
pub(crate) use visit::{Found, declarations, find};
pub use visit::{check_materialized, parameter_gradients, parameter_values};
