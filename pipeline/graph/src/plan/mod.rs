//! The plan of a traced model: created by partitioners or manually, checked against a model, used by a
//! pipeline.

mod build;
mod check;
mod planner;
mod settings;
mod text;

pub use build::{Planning, graph_digest};
pub use check::{check_materialized, check_model, check_trace, layout};
pub use planner::Planner;
