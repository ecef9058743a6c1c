//! Inputs that do not change while blocks move between stages.

use tinderbox_schedule::{RankIndex, StageIndex};

use super::flight::{Flight, flights};
use crate::{Machine, Step};

/// Compute actions of a stage per micro-batch.
pub(super) const ACTIONS: u64 = 2;

/// Stages on the ranks of a machine.
#[derive(Debug, Clone)]
pub(super) struct Terms<'a> {
    pub machine: &'a Machine,
    /// The rank of each stage.
    pub rank_of: Vec<usize>,
    /// The stages of each rank, ascending.
    pub stages_of: Vec<Vec<usize>>,
    /// Whether a stage may recompute activations.
    pub may_recompute: bool,
    /// The states of each stage that keep most.
    pub flights: Vec<Vec<Flight>>,
}

impl<'a> Terms<'a> {
    /// Places stages as the machine does, under the schedule of the step.
    pub fn of_machine(machine: &'a Machine, step: &Step) -> Self {
        let map = machine.stage_to_rank();
        let lists = step.lists(&map);
        let stages = (0..map.len()).map(StageIndex::new);
        let flights = stages.map(|stage| flights(lists.as_ref(), stage)).collect();
        let rank_of: Vec<usize> = map.iter().map(|rank| rank.index()).collect();
        Self::new(machine, step, &rank_of, flights)
    }

    /// Places stages on the given ranks, under unknown lists that have at most `in_flight`
    /// micro-batches in flight on each stage.
    pub fn of_map(machine: &'a Machine, step: &Step, rank_of: &[usize], in_flight: usize) -> Self {
        let flight = Flight {
            micro_batches: in_flight as u64,
            weight_gradients: 1,
        };
        let flights = vec![vec![flight]; rank_of.len()];
        Self::new(machine, step, rank_of, flights)
    }

    fn new(
        machine: &'a Machine,
        step: &Step,
        rank_of: &[usize],
        flights: Vec<Vec<Flight>>,
    ) -> Self {
        let mut stages_of = vec![Vec::new(); machine.ranks()];
        for (stage, rank) in rank_of.iter().enumerate() {
            stages_of[*rank].push(stage);
        }
        Self {
            machine,
            rank_of: rank_of.to_vec(),
            stages_of,
            may_recompute: step.may_recompute,
            flights,
        }
    }

    /// Returns the number of stages.
    pub fn stages(&self) -> usize {
        self.rank_of.len()
    }

    /// Returns the rank of each stage.
    pub fn stage_to_rank(&self) -> Vec<RankIndex> {
        let ranks = self.rank_of.iter();
        ranks.map(|rank| RankIndex::new(*rank)).collect()
    }
}
