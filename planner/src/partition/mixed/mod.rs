//! The mixed pipe: ranks run several stages that need not be next to each other.
//!
//! After FTPipe (Eliad et al., USENIX ATC 2021): blocks are merged into groups, groups go to ranks by
//! their load, what is connected on a rank becomes a stage, and borders are moved. It balances models
//! whose blocks are few and uneven, which no contiguous cut does. Here the largest group comes first,
//! memory is watched in every move with the micro-batches in flight counted, and the number of groups
//! is chosen by what the simulator says of the best candidates.

mod assign;
mod groups;
mod stages;

#[cfg(feature = "metis")]
pub(super) use stages::{Staged, divided, fewest};
#[cfg(not(feature = "metis"))]
use stages::{Staged, divided, fewest};

use tinderbox_schedule::RankIndex;

use super::acyclic::to_partition;
use super::graph::{Graph, Node};
use super::loads::{Loads, Objective, Score};
use super::refine::{Effort, refine};
use super::terms::Terms;
use crate::{Machine, Partition, PlannerError, Step, Work, over_limit, predict};

/// What the mixed pipe may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MixedOptions {
    /// The most stages, in stages per rank: each one takes actions of every micro-batch. 0 counts as 1.
    pub most_stages_per_rank: usize,
    /// The most groups of blocks that are given to ranks, in groups per rank. 0 counts as 1.
    pub most_groups_per_rank: usize,
    /// How many candidates are simulated, those that look best. 0 counts as 1.
    pub candidates: usize,
}

impl Default for MixedOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl MixedOptions {
    /// What [`Default`] gives, as a constant.
    pub const DEFAULT: Self = Self {
        most_stages_per_rank: 4,
        most_groups_per_rank: 16,
        candidates: 4,
    };
}

/// Groups per rank that are tried.
const GROUPS_PER_RANK: [usize; 9] = [32, 24, 16, 12, 8, 6, 4, 3, 2];

/// Scores of the moves of groups, and of blocks.
const EFFORT: usize = 2_500;

/// Gives blocks to ranks by their load and makes stages of what is connected on each.
///
/// The stages are numbered along the flow, and the ranks of stages follow no pattern: their schedule
/// comes from [`auto`](tinderbox_schedule::auto). Candidates with 1 to `most_groups_per_rank` groups per
/// rank are made, and the fastest by [`predict()`] is returned, of those that fit if any does.
///
/// Time: blocks times a window of the order for the groups, a fixed number of moves looked at per
/// candidate, and a search for a schedule for each that is simulated. Memory: values times stages.
///
/// # Errors
///
/// [`PlannerError::Work`], [`PlannerError::TooManyStages`] for fewer blocks than ranks, and what
/// [`predict()`] says where no candidate has a schedule.
pub fn mixed(
    work: &Work,
    machine: &Machine,
    step: &Step,
    options: MixedOptions,
) -> Result<Partition, PlannerError> {
    work.check()?;
    let ranks = machine.ranks();
    if work.blocks.len() < ranks {
        return Err(PlannerError::TooManyStages {
            stages: ranks,
            blocks: work.blocks.len(),
        });
    }
    let splits = Terms::of_machine(machine, step).splits_backward();
    let graph = Graph::of_work(work, step, splits);
    let most = ranks.saturating_mul(options.most_stages_per_rank.max(1));
    let finder = Finder {
        work,
        machine,
        step,
        options,
        graph: &graph,
        most,
    };
    // Named schedules have as many micro-batches in flight as there are ranks; where memory is too small
    // for that, the scheduler finds lists with fewer.
    let mut in_flight = step.micro_batches.min(ranks).max(1);
    let (mut is_over, mut best) = finder.find(in_flight)?;
    while is_over && in_flight > 1 {
        in_flight /= 2;
        if let Ok((still, found)) = finder.find(in_flight)
            && !still
        {
            (is_over, best) = (still, found);
        }
    }
    Ok(best)
}

/// What candidates are made of.
#[derive(Debug)]
struct Finder<'a> {
    work: &'a Work,
    machine: &'a Machine,
    step: &'a Step,
    options: MixedOptions,
    graph: &'a Graph,
    /// The most stages.
    most: usize,
}

impl Finder<'_> {
    /// The fastest candidate where each stage has so many micro-batches in flight, and whether it is over
    /// the memory of a rank.
    fn find(&self, in_flight: usize) -> Result<(bool, Partition), PlannerError> {
        let (machine, graph) = (self.machine, self.graph);
        let ranks = machine.ranks();
        let mut found: Vec<(Score, Partition)> = Vec::new();
        let mut groups = groups::Groups::new(self.work, graph);
        let most_groups = self.options.most_groups_per_rank.max(1);
        let counts = GROUPS_PER_RANK.iter().chain(&[1]);
        let total: u64 = graph.nodes.iter().map(Node::time).sum();
        for count in counts.filter(|count| **count <= most_groups) {
            let count = ranks.saturating_mul(*count);
            if count > graph.nodes.len() && count > ranks {
                continue;
            }
            groups.merge_to(count, total / count as u64, machine.link);
            let group_of = groups.numbers();
            let coarse = graph.contract(&group_of, groups.len());
            let rank_of = assign::assign(&coarse, machine, in_flight as u64);
            let Some(staged) = fewest(&coarse, &rank_of, ranks, self.most) else {
                continue;
            };
            let divided = divided(&coarse, &staged, self.most);
            for staged in divided.into_iter().chain([staged]) {
                let staged = staged.in_order_of_use(machine.rank_models());
                let staged = self.finer(&coarse, &group_of, staged, in_flight);
                let refined = refined(graph, machine, self.step, &staged, in_flight);
                if found.iter().all(|(_, other)| *other != refined.1) {
                    found.push(refined);
                }
            }
        }
        found.sort_by_key(|(score, partition)| (*score, partition.stages()));
        let candidates = found.into_iter().map(|(_, partition)| partition);
        let candidates = candidates.take(self.options.candidates.max(1));
        fastest(self.work, machine, self.step, candidates)
    }

    /// Moves groups between stages, and says which stage each block is on then.
    fn finer(
        &self,
        coarse: &Graph,
        group_of: &[usize],
        staged: Staged,
        in_flight: usize,
    ) -> Staged {
        let terms = terms(self.machine, self.step, &staged, in_flight);
        let mut loads = Loads::new(coarse, &terms, staged.stage_of);
        let (order, objective) = (coarse.order(), Objective::LargestRank);
        refine(&mut loads, &order, objective, &mut Effort(EFFORT));
        let stage_of = group_of.iter().map(|group| loads.stage_of()[*group]);
        Staged {
            stage_of: stage_of.collect(),
            rank_of: staged.rank_of,
        }
    }
}

fn terms(machine: &Machine, step: &Step, staged: &Staged, in_flight: usize) -> Terms {
    let map: Vec<RankIndex> = staged
        .rank_of
        .iter()
        .map(|rank| RankIndex::new(*rank))
        .collect();
    Terms::of_map(machine, step, &map, in_flight)
}

/// Moves blocks between stages. Memory is reckoned with so many micro-batches in flight on every stage;
/// a schedule that has fewer may fit where this says that nothing does.
pub(super) fn refined(
    graph: &Graph,
    machine: &Machine,
    step: &Step,
    staged: &Staged,
    in_flight: usize,
) -> (Score, Partition) {
    let terms = terms(machine, step, staged, in_flight);
    let mut loads = Loads::new(graph, &terms, staged.stage_of.clone());
    let (order, objective) = (graph.order(), Objective::LargestRank);
    refine(&mut loads, &order, objective, &mut Effort(EFFORT));
    (loads.score(objective), to_partition(&loads))
}

/// The fastest of partitions by the simulator, and whether it is over the memory of a rank: those
/// within memory first, of equals the one with fewer crossing bytes, then the first.
pub(super) fn fastest(
    work: &Work,
    machine: &Machine,
    step: &Step,
    candidates: impl Iterator<Item = Partition>,
) -> Result<(bool, Partition), PlannerError> {
    let mut best: Option<((bool, u64, u64), Partition)> = None;
    let mut error = None;
    for partition in candidates {
        let predicted = match predict(work, machine, step, &partition) {
            Ok(predicted) => predicted.prediction,
            Err(refused) => {
                error = error.or(Some(refused));
                continue;
            }
        };
        let memory: Vec<_> = predicted.ranks.iter().map(|rank| rank.memory).collect();
        let is_over = over_limit(machine, &memory).is_some();
        let key = (is_over, predicted.step_ns, predicted.crossing_bytes);
        if best.as_ref().is_none_or(|(other, _)| key < *other) {
            best = Some((key, partition));
        }
    }
    match (best, error) {
        (Some(((is_over, ..), partition)), _) => Ok((is_over, partition)),
        (None, Some(error)) => Err(error),
        (None, None) => Err(PlannerError::TooManyStages {
            stages: machine.ranks(),
            blocks: work.blocks.len(),
        }),
    }
}
