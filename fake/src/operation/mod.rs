//! Recorded operations: their names, attributes and costs.
//!
//! An operation is stored as Burn's own type. [`Operation`] has the facts that analyses need, so that only crates that
//! execute operations depend on Burn's representation.

mod cost;
mod describe;
mod encode;
mod id;
mod tensors;
mod view;

pub use cost::OperationCost;
pub use describe::typed_shape;
pub use encode::encode;
pub use id::{NodeId, ValueId};
pub use tensors::change_tensors;
pub use view::Operation;
