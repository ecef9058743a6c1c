//! Who holds what.

use burn::module::Module;
use tinderbox_deferred::{MaterializeError, ParameterPath, check_materialized};
use tinderbox_planner::PlanStage;

use super::Plan;
use crate::{NotHeld, PlanError};

impl Plan {
    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        let ranks = self.stages().iter().map(|stage| stage.rank.index() + 1);
        ranks.max().unwrap_or(0)
    }

    /// What a rank runs and holds, in the order of the forward.
    ///
    /// # Errors
    ///
    /// When the plan has no such rank.
    pub fn rank(&self, rank: usize) -> Result<Vec<&PlanStage>, PlanError> {
        let stages = self
            .stages()
            .iter()
            .filter(|stage| stage.rank.index() == rank);
        let stages: Vec<&PlanStage> = stages.collect();
        if stages.is_empty() {
            let ranks = self.ranks();
            return Err(PlanError::RankOutOfRange { rank, ranks });
        }
        Ok(stages)
    }

    /// The stage that makes, updates and saves a parameter; `None` when the plan does not name it.
    pub fn owner(&self, path: &ParameterPath) -> Option<&PlanStage> {
        let mut stages = self.stages().iter();
        stages.find(|stage| stage.parameters.contains(path))
    }

    /// Refuses the use of a module some of whose parameters a rank does not hold, before a forward
    /// panics in Burn.
    ///
    /// # Errors
    ///
    /// Names every parameter that is fake, and the rank that owns it.
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
