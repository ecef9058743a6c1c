//! Settings of a planner that can contradict each other.

use tinderbox_planner::{MemoryBudget, Partitioner};

use crate::schedule::RankIndex;
use crate::{Cut, PlanError};

/// The division of operations among stages: by one of three settings, else by [`Partitioner::Chain`].
#[derive(Debug, Default)]
pub(super) struct Division {
    pub partitioner: Option<Partitioner>,
    pub cuts: Option<Vec<Cut>>,
    pub streamed: Option<MemoryBudget>,
    /// The ranks of the stages of manual cuts.
    pub stage_to_rank: Option<Vec<RankIndex>>,
}

impl Division {
    /// Checks that at most one setting divides the operations.
    pub fn check(&self) -> Result<(), PlanError> {
        let settings = [
            (self.streamed.is_some(), "Planner::streamed"),
            (self.cuts.is_some(), "Planner::cuts"),
            (self.partitioner.is_some(), "Planner::partitioner"),
        ];
        let mut given = settings.into_iter().filter(|(is_given, _)| *is_given);
        if let (Some((_, first)), Some((_, second))) = (given.next(), given.next()) {
            return Err(PlanError::Contradiction {
                first,
                second,
                decided: "the cuts of the model",
            });
        }
        match self.stage_to_rank.is_some() && self.cuts.is_none() {
            true => Err(PlanError::RanksWithoutCuts),
            false => Ok(()),
        }
    }
}

/// The number of replicas: set, chosen, or one.
#[derive(Default)]
pub(super) struct Replicas {
    pub count: Option<usize>,
    pub is_chosen: bool,
}

impl Replicas {
    /// The number; `None` to choose the best number.
    pub fn given(&self) -> Option<usize> {
        (!self.is_chosen).then(|| self.count.unwrap_or(1))
    }

    /// Checks that the number is not both set and chosen.
    pub fn check(&self) -> Result<(), PlanError> {
        match self.is_chosen && self.count.is_some() {
            true => Err(PlanError::Contradiction {
                first: "Planner::replicas",
                second: "Planner::choose_replicas",
                decided: "the number of replicas",
            }),
            false => Ok(()),
        }
    }
}
