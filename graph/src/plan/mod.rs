//! The plan of a traced model: created by partitioners or manually, checked against a model, used by a
//! pipeline.

mod build;
mod check;
mod ownership;
#[expect(clippy::module_inception, reason = "the folder is of the type")]
mod plan;
mod planner;
mod text;
mod values;

pub use build::Planning;
pub use plan::Plan;
pub use planner::Planner;
