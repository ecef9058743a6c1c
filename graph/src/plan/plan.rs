//! A plan, and what it says of its stages.

use std::path::Path;

use derive_more::Display;
use serde::{Deserialize, Serialize};
use tinderbox_planner::{Boundary, PlanFile, PlanStage};

use crate::PlanError;
use crate::lists::ScheduleChoice;
use crate::schedule::RankIndex;

/// A plan: which stage owns, runs and sends what, and the predicted time and memory of a step.
///
/// Ownership is by path, so a plan is valid for every mode and batch shape of its model; boundaries and
/// predictions belong to the traced micro-batch, or to the chosen one. The same inputs produce the same file.
#[derive(Clone, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Plan {
    pub(super) file: PlanFile,
}

impl Plan {
    /// Sets the number of replicas, a power of two: every stage is run by so many ranks, each with its share of the
    /// micro-batches, and their gradients are summed before the update. The ranks of a replica follow the ranks of the one
    /// before. Each replica keeps the state of the optimizer for its share of the parameters.
    ///
    /// A step has the same bits with any number of replicas that divides the groups of the
    /// [sum](crate::GradientSum).
    ///
    /// Each replica has as many micro-batches as were planned, so a step has as many times more; the prediction is for one
    /// replica, also if its micro-batches are smaller then. [`Planner::replicas`](crate::Planner::replicas) divides the ranks and the micro-batches of a
    /// plan instead, and predicts the exchange.
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Self {
        let step = &mut self.file.step;
        step.micro_batches = step.per_replica().saturating_mul(replicas.max(1));
        step.replicas = replicas;
        self
    }

    /// Returns the number of replicas.
    pub fn replica_count(&self) -> usize {
        self.file.step.replicas
    }

    /// Returns the number of ranks of all replicas.
    pub fn world_size(&self) -> usize {
        self.ranks().saturating_mul(self.replica_count())
    }

    /// Returns the contents of the plan file.
    pub fn file(&self) -> &PlanFile {
        &self.file
    }

    /// Returns the rank of every stage.
    pub fn stage_to_rank(&self) -> Vec<RankIndex> {
        self.file.stage_to_rank()
    }

    /// Returns the stages in order.
    pub fn stages(&self) -> &[PlanStage] {
        &self.file.stages
    }

    /// Returns the values that cross between stages.
    pub fn boundaries(&self) -> &[Boundary] {
        &self.file.boundaries
    }

    /// Returns a digest of the model's parameters: paths, shapes and dtypes.
    pub fn model(&self) -> &str {
        &self.file.model
    }

    /// Returns the schedule of the plan: its own lists if it has any, else the named schedule.
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
    /// When the file can't be read or is not a plan of this version.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, PlanError> {
        let file = PlanFile::load(path)?;
        Ok(Self { file })
    }

    /// Returns the plan as JSON.
    pub fn to_json(&self) -> String {
        self.file.to_json()
    }

    /// Reads a plan from JSON.
    ///
    /// # Errors
    ///
    /// When the text is not a plan of this version.
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        let file = PlanFile::from_json(text)?;
        Ok(Self { file })
    }
}
