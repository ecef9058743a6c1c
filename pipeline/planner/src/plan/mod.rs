//! The plan, its file and its views. The planner, simulator, runtime and command line read it.
//!
//! | view | purpose |
//! |---|---|
//! | [`Display`](std::fmt::Display) | the terminal: tables |
//! | [`Plan::programs_text`] | the terminal: the programs of each stage, line by line |
//! | [`Plan::diff`] | the differences between two plans |
//!
//! Views are pure functions of the plan. They accept any plan that can be read, with any figures,
//! stages and names, and never panic; they escape names.

use tinderbox_schedule::draw::escape;

mod diff;
mod facts;
mod file;
mod model;
mod modules;
mod program;
mod show;
mod tables;
#[cfg(test)]
mod tests;

pub use diff::{Change, PlanDiff};
pub use file::{
    Boundary, PLAN_VERSION, Plan, PlanParameter, PlanProgram, PlanStage, PlanValue, TieGroup,
};
pub use model::ModelDifference;
