//! The plan file, which the planner, simulator, runtime and command line read, and its views.
//!
//! | view | purpose |
//! |---|---|
//! | [`Display`](std::fmt::Display) | the terminal: tables |
//! | [`PlanFile::programs_text`] | the terminal: the programs of each stage, line by line |
//! | [`PlanFile::to_dot`] | Graphviz |
//! | [`PlanFile::to_html`] | a browser: one self-contained page |
//! | [`PlanFile::diff`] | the differences between two plans |
//!
//! Views are pure functions of the file. They accept any file that can be read, with any figures,
//! stages and names, and never panic; they escape names.

use tinderbox_schedule::draw::{escape, units};

mod chart;
mod diff;
mod dot;
mod facts;
mod file;
mod html;
mod model;
mod modules;
mod program;
mod show;
mod tables;
#[cfg(test)]
mod tests;

pub use diff::{Change, PlanDiff};
pub use file::{
    Boundary, PLAN_VERSION, PlanFile, PlanParameter, PlanProgram, PlanStage, PlanValue, TieGroup,
};
pub use model::ModelDifference;
