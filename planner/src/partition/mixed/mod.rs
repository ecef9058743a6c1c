//! The mixed pipe: ranks run several stages, which need not be contiguous.
//!
//! After FTPipe (Eliad et al., USENIX ATC 2021): blocks are merged into groups, groups are assigned to
//! ranks by their load, connected groups on a rank become a stage, and blocks at the borders are moved.
//! It balances models with few and uneven blocks, which no contiguous cut does. Unlike FTPipe, the
//! largest group is assigned first, every move respects memory with the micro-batches in flight
//! counted, and the number of groups is chosen by simulating the best candidates.

mod assign;
mod groups;
mod stages;

use stages::Staged;
pub(super) use stages::{divided, fewest};

use super::chain::chain;
use super::graph::{Graph, Node};
use super::loads::{Loads, Score};
use super::refine::{Effort, refine};
use super::terms::Terms;
use crate::{Machine, Partition, PlannerError, Step, Work, over_limit, predict};

/// The maximum number of stages per rank: each stage adds actions for every micro-batch.
const STAGES_PER_RANK: usize = 4;

/// The number of candidates that are simulated, those with the best scores.
const CANDIDATES: usize = 4;

/// Groups of blocks per rank that are tried, each with its candidates.
const GROUPS_PER_RANK: [usize; 8] = [16, 12, 8, 6, 4, 3, 2, 1];

/// Maximum number of scores while groups, and then blocks, move.
const EFFORT: usize = 2_500;

/// Maximum number of scores while blocks move from contiguous stages.
const CHAIN_EFFORT: usize = 40_000;

/// Assigns the blocks of valid work, at least one per rank, to ranks by load and forms stages of connected
/// blocks on each rank.
///
/// Candidates are the stages of `chain` after moves of blocks, and 1 to 16 groups per rank. The stages of the
/// latter are on any ranks, in the order of the forward: their schedule is searched by
/// [`auto`](tinderbox_schedule::auto). The fastest by [`predict()`] that fits is returned, or the fastest of
/// all if none fits.
///
/// Time: that of `chain`, blocks times a window of the order for the groups, a fixed number of moves per candidate, and
/// a schedule search for each candidate that is simulated. Memory: values times stages.
///
/// # Errors
///
/// The error of [`predict()`] where no candidate has a schedule.
pub(super) fn mixed(
    work: &Work,
    machine: &Machine,
    step: &Step,
) -> Result<Partition, PlannerError> {
    let ranks = machine.ranks();
    let graph = Graph::of_work(work, step);
    let finder = Finder {
        work,
        machine,
        step,
        graph: &graph,
        most: ranks.saturating_mul(STAGES_PER_RANK),
    };
    // Named schedules have as many micro-batches in flight as there are ranks; where memory is limited,
    // a search may find lists with fewer for faster partitions.
    let mut in_flight = step.micro_batches.min(ranks).max(1);
    let mut ranks = machine.rank_models().iter();
    let has_limit = ranks.any(|rank| rank.memory_bytes.is_some());
    let mut candidates: Vec<Partition> = finder.moved_chain().into_iter().collect();
    candidates.extend(finder.candidates(in_flight));
    while has_limit && in_flight > 1 {
        in_flight /= 2;
        for candidate in finder.candidates(in_flight) {
            if !candidates.contains(&candidate) {
                candidates.push(candidate);
            }
        }
    }
    fastest(work, machine, step, candidates.into_iter())
}

/// The inputs of candidates.
#[derive(Debug)]
struct Finder<'a> {
    work: &'a Work,
    machine: &'a Machine,
    step: &'a Step,
    graph: &'a Graph,
    /// The maximum number of stages.
    most: usize,
}

impl Finder<'_> {
    /// The contiguous stages of `chain` after moves of blocks: some exchange values with stages that
    /// are not adjacent. `None` where there are fewer blocks than stages.
    fn moved_chain(&self) -> Option<Partition> {
        let (work, step) = (self.work, self.step);
        let unlimited = || chain(work, &self.machine.clone().with_memory(u64::MAX), step);
        let chained = chain(work, self.machine, step).or_else(|_| unlimited());
        let chained = chained.ok()?;
        let terms = Terms::of_machine(self.machine, step);
        let mut loads = Loads::new(self.graph, &terms, chained.partition.stage_of);
        refine(&mut loads, &self.graph.order(), &mut Effort(CHAIN_EFFORT));
        Some(loads.partition())
    }

    /// The candidates with the best scores where each stage has `in_flight` micro-batches in flight.
    fn candidates(&self, in_flight: usize) -> impl Iterator<Item = Partition> + use<> {
        let (machine, graph) = (self.machine, self.graph);
        let ranks = machine.ranks();
        let mut found: Vec<(Score, Partition)> = Vec::new();
        let mut groups = groups::Groups::new(self.work, graph);
        let total: u64 = graph.nodes.iter().map(Node::time).sum();
        for count in GROUPS_PER_RANK {
            let count = ranks.saturating_mul(count);
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
        let best = found.into_iter().map(|(_, partition)| partition);
        best.take(CANDIDATES)
    }

    /// Moves groups between stages, and returns the stage of each block.
    fn finer(
        &self,
        coarse: &Graph,
        group_of: &[usize],
        staged: Staged,
        in_flight: usize,
    ) -> Staged {
        let terms = Terms::of_map(self.machine, self.step, &staged.rank_of, in_flight);
        let mut loads = Loads::new(coarse, &terms, staged.stage_of);
        refine(&mut loads, &coarse.order(), &mut Effort(EFFORT));
        let stage_of = group_of.iter().map(|group| loads.stage_of()[*group]);
        Staged {
            stage_of: stage_of.collect(),
            rank_of: staged.rank_of,
        }
    }
}

/// Moves blocks between stages. Memory is computed with `in_flight` micro-batches on every stage; a
/// schedule with fewer may fit where this finds nothing.
pub(super) fn refined(
    graph: &Graph,
    machine: &Machine,
    step: &Step,
    staged: &Staged,
    in_flight: usize,
) -> (Score, Partition) {
    let terms = Terms::of_map(machine, step, &staged.rank_of, in_flight);
    let mut loads = Loads::new(graph, &terms, staged.stage_of.clone());
    refine(&mut loads, &graph.order(), &mut Effort(EFFORT));
    (loads.score(), loads.partition())
}

/// The fastest partition by the simulator: those within the memory of ranks first; ties are broken by
/// fewer crossing bytes, then by order.
pub(super) fn fastest(
    work: &Work,
    machine: &Machine,
    step: &Step,
    candidates: impl Iterator<Item = Partition>,
) -> Result<Partition, PlannerError> {
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
        (Some((_, partition)), _) => Ok(partition),
        (None, Some(error)) => Err(error),
        (None, None) => Err(PlannerError::TooManyStages {
            stages: machine.ranks(),
            blocks: work.blocks.len(),
        }),
    }
}
