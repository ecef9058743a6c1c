//! The schedule itself: one list of actions per rank.

use std::collections::BTreeMap;

use derive_more::Display;
use serde::{Deserialize, Serialize};
use tinderbox_ids::{RankIndex, StageIndex};

use crate::action::Action;
use crate::dependencies::Edge;

/// The purpose of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Display)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleMode {
    /// Forward, backward and update of every stage.
    #[display("training")]
    Training,
    /// Forward of every stage only, for evaluation.
    #[display("forward-only")]
    ForwardOnly,
}

/// The kinds of actions that a schedule has.
///
/// A field, because the lists don't imply it: a list that lost its messages must not be confused with one
/// that never had any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Display)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Compute actions only; dependencies between ranks are implied. Generators and
    /// users write this form.
    #[display("compute only")]
    ComputeOnly,
    /// With sends, receives, reduces and updates: the form that ranks execute.
    #[display("lowered")]
    Lowered,
}

/// An action and its position in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[display("`{action}` (rank {rank}, position {position})")]
pub struct Place {
    /// The rank whose list it is in.
    pub rank: RankIndex,
    /// Its position in that list, from zero.
    pub position: usize,
    /// The action.
    pub action: Action,
}

/// The actions of one step per rank, in the order in which the rank runs them.
///
/// The fields are plain data, and a schedule from a file or a user is not trusted until
/// [`verify`](crate::verify) has accepted it; the accessors accept any value and never panic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct Schedule {
    /// The name in reports.
    pub name: String,
    /// Training or forward only.
    pub mode: ScheduleMode,
    /// Compute actions only, or all actions.
    pub form: Form,
    /// The number of stages.
    pub stages: usize,
    /// The number of micro-batches in a step.
    pub micro_batches: usize,
    /// The rank that runs each stage.
    pub stage_to_rank: Vec<RankIndex>,
    /// The list of each rank.
    pub ranks: Vec<Vec<Action>>,
}

/// Returns the stages of each rank that has one, in order.
pub(crate) fn stages_by_rank(stage_to_rank: &[RankIndex]) -> BTreeMap<RankIndex, Vec<StageIndex>> {
    let mut stages: BTreeMap<RankIndex, Vec<StageIndex>> = BTreeMap::new();
    for (stage, rank) in stage_to_rank.iter().enumerate() {
        let own = stages.entry(*rank).or_default();
        own.push(StageIndex::new(stage));
    }
    stages
}

impl Schedule {
    /// Creates the compute-only schedule of a training step.
    pub(crate) fn training(
        name: &str,
        stage_to_rank: Vec<RankIndex>,
        micro_batches: usize,
        ranks: Vec<Vec<Action>>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            mode: ScheduleMode::Training,
            form: Form::ComputeOnly,
            stages: stage_to_rank.len(),
            micro_batches,
            stage_to_rank,
            ranks,
        }
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the rank that runs a stage, or `None` if the schedule has no such stage.
    pub fn rank_of(&self, stage: StageIndex) -> Option<RankIndex> {
        self.stage_to_rank.get(stage.index()).copied()
    }

    /// Returns the stages of a rank, in ascending order.
    pub fn stages_of(&self, rank: RankIndex) -> impl Iterator<Item = StageIndex> + '_ {
        let stages = (0..self.stage_to_rank.len()).map(StageIndex::new);
        stages.filter(move |stage| self.rank_of(*stage) == Some(rank))
    }

    /// Returns the list of a rank; empty if there is no such rank.
    pub fn actions(&self, rank: RankIndex) -> &[Action] {
        self.ranks.get(rank.index()).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of actions of all ranks.
    pub fn action_count(&self) -> usize {
        self.ranks.iter().map(Vec::len).sum()
    }

    /// Returns all actions with their positions, rank by rank.
    pub fn places(&self) -> impl Iterator<Item = Place> + '_ {
        let ranks = (0..self.ranks.len()).map(RankIndex::new);
        ranks.flat_map(move |rank| {
            (0..self.actions(rank).len()).map(move |position| self.place(rank, position))
        })
    }

    /// Returns the place of the action at a position of a rank. The position must exist.
    pub(crate) fn place(&self, rank: RankIndex, position: usize) -> Place {
        Place {
            rank,
            position,
            action: self.ranks[rank.index()][position],
        }
    }

    /// Returns the schedule without the actions that [`lower`](crate::lower) adds.
    pub fn compute_only(&self) -> Self {
        let computes = |list: &Vec<Action>| {
            let computes = list.iter().filter(|action| !action.tasks().is_empty());
            computes.copied().collect()
        };
        self.with_lists(Form::ComputeOnly, self.ranks.iter().map(computes))
    }

    /// Returns the schedule with another form and other lists.
    pub(crate) fn with_lists(
        &self,
        form: Form,
        ranks: impl IntoIterator<Item = Vec<Action>>,
    ) -> Self {
        Self {
            name: self.name.clone(),
            form,
            stage_to_rank: self.stage_to_rank.clone(),
            ranks: ranks.into_iter().collect(),
            ..*self
        }
    }

    /// Creates the schedule of a step without micro-batches, for a replica without samples of a batch.
    pub fn idle(mode: ScheduleMode, stage_to_rank: &[RankIndex]) -> Self {
        let last = stage_to_rank.iter().max();
        let ranks = last.map_or(0, |last| last.index().saturating_add(1));
        // At most one list per stage: a map that names a million ranks is a mistake.
        let ranks = vec![Vec::new(); ranks.min(stage_to_rank.len())];
        Self {
            mode,
            ..Self::training("idle", stage_to_rank.to_vec(), 0, ranks)
        }
    }

    /// Returns whether an edge is used in this schedule's mode.
    pub(crate) fn has_edge(&self, edge: Edge) -> bool {
        self.mode == ScheduleMode::Training || edge.is_forward()
    }

    /// Returns whether two stages are on two ranks, so that values between them need a message.
    pub(crate) fn are_apart(&self, from: StageIndex, to: StageIndex) -> bool {
        self.rank_of(from) != self.rank_of(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dependencies, gpipe, lower};

    #[test]
    fn accessors_answer_for_what_does_not_exist() {
        let schedule = gpipe(2, 1);
        assert_eq!(schedule.rank_of(StageIndex::new(2)), None);
        assert!(schedule.actions(RankIndex::new(2)).is_empty());
        assert_eq!(schedule.stages_of(RankIndex::new(2)).count(), 0);
        assert_eq!(
            schedule.stages_of(RankIndex::new(1)).collect::<Vec<_>>(),
            [StageIndex::new(1)]
        );
        assert_eq!((schedule.world_size(), schedule.action_count()), (2, 4));
    }

    #[test]
    fn compute_only_undoes_lowering() {
        let schedule = gpipe(3, 2);
        let lowered = lower(&schedule, &Dependencies::chain(3));
        assert_ne!(lowered, schedule);
        assert_eq!(lowered.compute_only(), schedule);
    }

    #[test]
    fn a_schedule_survives_its_file_form() {
        let lowered = lower(&gpipe(2, 1), &Dependencies::chain(2));
        let text = serde_json::to_string(&lowered).unwrap();
        insta::assert_snapshot!(text, @r#"{"name":"gpipe","mode":"training","form":"lowered","stages":2,"micro_batches":1,"stage_to_rank":[0,1],"ranks":[["0F0","0F0>1F0","0B0<1B0","0B0","0R0","0U"],["1F0<0F0","1F0","1B0","1B0>0B0","1R1","1U"]]}"#);
        assert_eq!(serde_json::from_str::<Schedule>(&text).unwrap(), lowered);
    }
}
