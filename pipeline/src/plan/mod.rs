//! The plan of a traced model: made by partitioners or by hand, checked against a model, used by a
//! pipeline.

mod build;
mod check;
mod ownership;
mod planner;
mod text;
mod values;

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tinderbox_planner::{Boundary, Machine, PlanFile, PlanStage};

pub(crate) use build::{Planning, transient_bytes};
pub use planner::Planner;

use crate::PlanError;
use crate::batch::Batch;
use crate::partition::Cut;
use crate::runtime::ScheduleChoice;
use crate::schedule::RankIndex;
use crate::trace::Trace;

/// Which stage owns, runs and sends what, and what a step will take.
///
/// Ownership is by path, so a plan serves every mode and batch shape of its model; boundaries and
/// predictions are those of the traced batch. The file is the same whenever it is made from the same
/// inputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Plan {
    file: PlanFile,
}

impl Plan {
    /// The best plan for a machine, with the defaults of [`Planner`].
    ///
    /// # Errors
    ///
    /// As [`Planner::plan`].
    pub fn auto<B: Batch>(trace: &Trace<B>, machine: &Machine) -> Result<Self, PlanError> {
        Planner::new(trace, machine).plan()
    }

    /// A plan with one stage more than there are cuts, given in the order of the forward, each on a
    /// rank of its own.
    ///
    /// # Errors
    ///
    /// As [`Planner::plan`].
    pub fn manual<B: Batch>(trace: &Trace<B>, cuts: &[Cut]) -> Result<Self, PlanError> {
        let machine = Machine::local(cuts.len() + 1)?;
        Planner::new(trace, &machine).cuts(cuts).plan()
    }

    /// A plan with a cut at every mark of the forward ([`cut`](tinderbox_fake::cut())).
    ///
    /// # Errors
    ///
    /// As [`Planner::plan`].
    pub fn at_marks<B: Batch>(trace: &Trace<B>) -> Result<Self, PlanError> {
        let program = trace
            .example_program()
            .map_err(|source| PlanError::Trace { source })?;
        let cuts: Vec<Cut> = (0..program.marks().len()).map(Cut::mark).collect();
        Self::manual(trace, &cuts)
    }

    /// All that stands in the file.
    pub fn file(&self) -> &PlanFile {
        &self.file
    }

    /// The rank of every stage.
    pub fn stage_to_rank(&self) -> Vec<RankIndex> {
        self.file.stage_to_rank()
    }

    /// The stages in order.
    pub fn stages(&self) -> &[PlanStage] {
        &self.file.stages
    }

    /// What crosses between stages.
    pub fn boundaries(&self) -> &[Boundary] {
        &self.file.boundaries
    }

    /// A digest of the model's parameters: paths, shapes and dtypes.
    pub fn model(&self) -> &str {
        &self.file.model
    }

    /// The schedule that the plan was made for: its lists where it has some, else the named one.
    pub fn schedule(&self) -> ScheduleChoice {
        match self.file.lists {
            Some(_) => ScheduleChoice::Planned(Box::new(self.file.without_programs())),
            None => self.file.step.schedule.into(),
        }
    }

    /// Writes the plan as JSON.
    ///
    /// # Errors
    ///
    /// When the file can't be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), PlanError> {
        Ok(self.file.save(path)?)
    }

    /// Reads a plan from a file.
    ///
    /// # Errors
    ///
    /// When the file can't be read or is no plan of this version.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, PlanError> {
        let file = PlanFile::load(path)?;
        Ok(Self { file })
    }

    /// The plan as JSON.
    pub fn to_json(&self) -> String {
        self.file.to_json()
    }

    /// A plan from JSON.
    ///
    /// # Errors
    ///
    /// When the text is no plan of this version.
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        let file = PlanFile::from_json(text)?;
        Ok(Self { file })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}
