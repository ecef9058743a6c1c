//! The plan file, which planner, simulator, runtime and command line read, and its views.
//!
//! | view | for |
//! |---|---|
//! | [`Display`](std::fmt::Display) | the terminal: tables |
//! | [`PlanFile::programs_text`] | the terminal: what each stage runs, line by line |
//! | [`PlanFile::to_dot`] | Graphviz |
//! | [`PlanFile::to_html`] | a browser: one page that needs nothing else |
//! | [`PlanFile::diff`] | what differs between two plans |
//!
//! Views are pure functions of the file. They accept any file that can be read, with any figures, stages
//! and names, and never panic; names are escaped.

use tinderbox_schedule::draw::{escape, units};

mod boundary;
mod chart;
mod diff;
mod dot;
mod facts;
mod file;
mod html;
mod memory;
mod model;
mod modules;
mod program;
mod show;
mod tables;
#[cfg(test)]
mod tests;

pub use diff::{Change, PlanDiff};
pub use file::{
    Boundary, Choice, PLAN_VERSION, PlanFile, PlanParameter, PlanProgram, PlanStage, PlanValue,
    TieGroup,
};
pub use model::ModelDifference;
