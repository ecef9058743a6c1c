//! What moved between two plans.

mod changes;
mod figure;
mod moves;
mod text;

pub use figure::Figure;

use serde::Serialize;
use tinderbox_schedule::{Edge, RankIndex, StageIndex};

use super::{Boundary, ModelDifference, PlanFile};
use crate::RankPrediction;

/// What is different in another plan. Its text says it in lines; an empty one says so too.
///
/// Made by [`PlanFile::diff`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PlanDiff {
    /// How the models differ that the plans are for; the earlier plan counts as the planned one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelDifference>,
    /// Differences in what the plans are for: program, machine, schedule, partitioner.
    pub purpose: Vec<Change>,
    /// Stages that only the later plan has.
    pub added_stages: Vec<StageIndex>,
    /// Stages that only the earlier plan has.
    pub removed_stages: Vec<StageIndex>,
    /// Parameters that another stage owns, those of a module together.
    pub moves: Vec<ParameterMove>,
    /// Stages of both plans that are not the same.
    pub stages: Vec<StageChange>,
    /// Ties that are not the same, by the tied parameter.
    pub ties: Vec<Change>,
    /// Boundaries that are not the same.
    pub boundaries: Vec<BoundaryChange>,
    /// Differences in what a step will take.
    pub prediction: Vec<Change>,
    /// Ranks that do not do or hold the same.
    pub ranks: Vec<RankChange>,
    /// Whether the plans have the same entries in another order or number.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reordered: bool,
}

/// One thing that is different.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What it is.
    pub what: String,
    /// In the earlier plan.
    pub before: Figure,
    /// In the later plan.
    pub after: Figure,
}

/// Where a parameter is owned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StagePlace {
    /// The stage.
    pub stage: StageIndex,
    /// The rank that runs it.
    pub rank: RankIndex,
}

/// Parameters that follow each other in the model's table and moved together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ParameterMove {
    /// The parameter, or the module that all of them are of.
    pub first: String,
    /// The last of several such modules that follow each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// How many parameters.
    pub parameters: usize,
    /// Their owner in the earlier plan; `None` where no stage was.
    pub from: Option<StagePlace>,
    /// Their owner in the later plan; `None` where no stage is.
    pub to: Option<StagePlace>,
}

/// A stage of both plans that is not the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StageChange {
    /// The stage.
    pub stage: StageIndex,
    /// What is different.
    pub changes: Vec<Change>,
}

/// A boundary that is not the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BoundaryChange {
    /// From which program to which.
    pub edge: Edge,
    /// In the earlier plan; `None` where nothing crossed.
    pub before: Option<Boundary>,
    /// In the later plan; `None` where nothing crosses.
    pub after: Option<Boundary>,
}

/// A rank that does not do or hold the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RankChange {
    /// The rank.
    pub rank: RankIndex,
    /// In the earlier plan; `None` where there was none.
    pub before: Option<RankPrediction>,
    /// In the later plan; `None` where there is none.
    pub after: Option<RankPrediction>,
}

impl PlanFile {
    /// What is different in a later plan. It is empty if and only if the plans are the same. Linear in
    /// both files, but for logarithms.
    #[must_use]
    pub fn diff(&self, later: &Self) -> PlanDiff {
        let stages = |plan: &Self| plan.stages.len();
        let only = |of: &Self, other: &Self| {
            let only = stages(other)..stages(of);
            only.map(StageIndex::new).collect::<Vec<_>>()
        };
        let mut diff = PlanDiff {
            model: ModelDifference::between(&self.parameters, &later.parameters),
            purpose: changes::purpose(self, later),
            added_stages: only(later, self),
            removed_stages: only(self, later),
            moves: moves::moves(self, later),
            stages: changes::stages(self, later),
            ties: changes::ties(self, later),
            boundaries: changes::boundaries(self, later),
            prediction: changes::prediction(self, later),
            ranks: changes::ranks(self, later),
            reordered: false,
        };
        diff.reordered = diff.is_empty() && self != later;
        diff
    }
}

impl PlanDiff {
    /// Whether the plans are the same.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests;
