//! Recorded operations, as all other crates ask about them: names, attributes, costs.
//!
//! An operation is stored as Burn's own type. [`Operation`] answers what analyses need, so that only crates that execute
//! operations depend on Burn's representation.

mod cost;
mod describe;
mod encode;
mod id;
mod tensors;
mod view;

pub use cost::OperationCost;
pub use describe::{operation_name, typed_shape};
pub use encode::encode;
pub use id::{NodeId, ValueId};
pub use tensors::change_tensors;
pub use view::Operation;
