//! The ownership of parameters.

use burn::module::Module;
use tinderbox_deferred::{MaterializeError, ParameterPath, check_materialized};
use tinderbox_planner::PlanStage;

use super::Plan;
use crate::{NotHeld, PlanError};

impl Plan {
    /// Returns the number of ranks of one replica.
    pub fn ranks(&self) -> usize {
        self.file.ranks()
    }

    /// Returns the stages of a rank, in the order of the forward.
    ///
    /// # Errors
    ///
    /// When the plan has no such rank.
    pub fn rank(&self, rank: usize) -> Result<Vec<&PlanStage>, PlanError> {
        let stages = self.stages().iter();
        let stages: Vec<&PlanStage> = stages.filter(|one| one.rank.index() == rank).collect();
        if stages.is_empty() {
            let ranks = self.ranks();
            return Err(PlanError::RankOutOfRange { rank, ranks });
        }
        Ok(stages)
    }

    /// Returns the stage that materializes, updates and saves a parameter; `None` if the plan does not
    /// contain it.
    pub fn owner(&self, path: &ParameterPath) -> Option<&PlanStage> {
        let mut stages = self.stages().iter();
        stages.find(|stage| stage.parameters.contains(path))
    }

    /// Checks that a rank holds all parameters of a module, so that its forward does not panic in Burn.
    ///
    /// # Errors
    ///
    /// [`PlanError::NotMaterialized`] with every parameter that is fake, and the rank that owns it.
    pub fn check_materialized<M: Module>(&self, rank: usize, module: &M) -> Result<(), PlanError> {
        let Err(MaterializeError::NotMaterialized { paths }) = check_materialized(module) else {
            return Ok(());
        };
        let parameters = paths.into_iter().map(|path| NotHeld {
            owner: self.owner(&path).map(|stage| stage.rank),
            path,
        });
        Err(PlanError::NotMaterialized {
            rank,
            parameters: parameters.collect(),
        })
    }
}
