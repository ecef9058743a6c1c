//! The multilevel acyclic partitioner, for graphs that are no line.
//!
//! After Moreira, Popp and Schulz (*Graph Partitioning with Acyclicity Constraints*, arXiv 1704.00705)
//! and Herrmann, Özkaya, Uçar, Kaya and Çatalyürek (*Multilevel Algorithms for Acyclic Partitioning of
//! Directed Acyclic Graphs*, 2019): the graph is made coarser pair by pair, cut at its coarsest, and
//! blocks are moved on every level on the way back. The last level also starts from its own cut, and
//! the best of all is taken, so the result is never worse than that cut.

mod coarsen;
mod initial;

#[cfg(any(test, feature = "metis"))]
pub(super) use initial::contiguous;

use std::fmt;

use tinderbox_schedule::RankIndex;

use super::graph::Graph;
use super::loads::{Loads, Objective, Score};
use super::refine::{Effort, refine};
use super::terms::Terms;
use crate::{Machine, Partition, PlannerError, Step, Work};

/// What the acyclic partitioner makes small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum AcyclicObjective {
    /// The largest stage: its compute, and what its messages take beyond that, forward and backward
    /// apart; then the bytes.
    #[default]
    Bottleneck,
    /// The bytes that cross between ranks, forward and gradient, while no stage is larger than the
    /// imbalance allows.
    EdgeCut,
}

/// What the acyclic partitioner may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AcyclicOptions {
    /// What becomes small.
    pub objective: AcyclicObjective,
    /// For [`AcyclicObjective::EdgeCut`]: how long the largest stage may take, in thousandths of the
    /// largest stage of the best cut of the blocks in their order. Below 1000 it counts as 1000.
    pub imbalance_permille: u64,
}

impl Default for AcyclicOptions {
    fn default() -> Self {
        Self::of(AcyclicObjective::Bottleneck)
    }
}

impl AcyclicOptions {
    /// An objective, with the imbalance that the literature uses.
    #[must_use]
    pub const fn of(objective: AcyclicObjective) -> Self {
        Self {
            objective,
            imbalance_permille: 1100,
        }
    }
}

impl fmt::Display for AcyclicObjective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bottleneck => "bottleneck",
            Self::EdgeCut => "edge cut",
        })
    }
}

/// Coarsening ends at so many nodes per stage.
const NODES_PER_STAGE: usize = 8;

/// Coarsening ends at so many nodes in all.
const COARSEST_NODES: usize = 48;

/// A node of a coarse level takes at most this part of a stage, as a divisor.
const PARTS_PER_STAGE: u64 = 4;

/// Scores per level.
const EFFORT: usize = 12_000;

/// Scores of the last level, for each of its starts.
const LAST_EFFORT: usize = 40_000;

/// Cuts the blocks into the machine's stages so that the stages form no cycle.
///
/// Stage `k` is on rank `machine.stage_to_rank()[k]`. A move that takes a rank beyond its memory is not
/// made; where no cut was found within the limits, the one that comes closest is returned, and
/// [`over_limit`](crate::over_limit) of its prediction says so.
///
/// Time: linear in the ends of values per level, and a fixed number of moves looked at, each of which
/// takes time for the values of a block and for the stages. Memory: values times stages.
///
/// # Errors
///
/// [`PlannerError::Work`], and [`PlannerError::TooManyStages`] for fewer blocks than stages.
pub fn acyclic(
    work: &Work,
    machine: &Machine,
    step: &Step,
    options: AcyclicOptions,
) -> Result<Partition, PlannerError> {
    work.check()?;
    let terms = Terms::of_machine(machine, step);
    let stages = terms.stages();
    if work.blocks.len() < stages {
        return Err(PlannerError::TooManyStages {
            stages,
            blocks: work.blocks.len(),
        });
    }
    let graph = Graph::of_work(work, step, terms.splits_backward());
    let first = Loads::new(
        &graph,
        &terms,
        initial::contiguous(&graph, &terms, &graph.order()),
    );
    let objective = objective_of(options, first.largest_ns());
    let mut best = Best::default();
    let order = graph.order();
    let mut starts = vec![
        first.stage_of().to_vec(),
        multilevel(&graph, &terms, objective),
    ];
    if objective != Objective::LargestStage {
        // Even stages leave room for moves that full ones have not.
        starts.push(multilevel(&graph, &terms, Objective::LargestStage));
    }
    for stage_of in starts {
        let mut loads = Loads::new(&graph, &terms, stage_of);
        refine(&mut loads, &order, objective, &mut Effort(LAST_EFFORT));
        best.enter(&loads, objective);
    }
    let stage_of = best.stage_of;
    Ok(to_partition(&Loads::new(&graph, &terms, stage_of)))
}

/// The partition of loads whose nodes are the blocks.
pub(super) fn to_partition(loads: &Loads<'_>) -> Partition {
    let ranks = loads.terms.rank_of.iter();
    Partition {
        stage_of: loads.stage_of().to_vec(),
        stage_to_rank: ranks.map(|rank| RankIndex::new(*rank)).collect(),
        recompute: loads.recompute().to_vec(),
    }
}

/// The objective in nanoseconds, where a cut with this largest stage is known.
pub(super) fn objective_of(options: AcyclicOptions, largest_ns: u64) -> Objective {
    match options.objective {
        AcyclicObjective::Bottleneck => Objective::LargestStage,
        AcyclicObjective::EdgeCut => {
            let permille = u128::from(options.imbalance_permille.max(1000));
            let limit = u128::from(largest_ns) * permille / 1000;
            Objective::CrossingBytes {
                limit_ns: u64::try_from(limit).unwrap_or(u64::MAX),
            }
        }
    }
}

/// The best assignment so far; of equals the first.
#[derive(Debug, Default)]
struct Best {
    score: Option<Score>,
    stage_of: Vec<usize>,
}

impl Best {
    fn enter(&mut self, loads: &Loads<'_>, objective: Objective) {
        let score = loads.score(objective);
        if self.score.is_none_or(|best| score < best) {
            self.score = Some(score);
            self.stage_of = loads.stage_of().to_vec();
        }
    }
}

/// Cuts the coarsest level and refines every level but the finest, which is the coarsest itself where
/// it is small.
fn multilevel(graph: &Graph, terms: &Terms, objective: Objective) -> Vec<usize> {
    let stages = terms.stages();
    let enough = COARSEST_NODES.max(NODES_PER_STAGE * stages);
    let most_ns = initial::mean_ns(graph, stages) / PARTS_PER_STAGE;
    let mut levels: Vec<(Vec<usize>, Graph)> = Vec::new();
    loop {
        let fine = levels.last().map_or(graph, |(_, graph)| graph);
        if fine.nodes.len() <= enough {
            break;
        }
        let Some((group_of, groups)) = coarsen::coarsen(fine, most_ns) else {
            break;
        };
        if groups < stages {
            break;
        }
        let coarse = fine.contract(&group_of, groups);
        levels.push((group_of, coarse));
    }
    let coarsest = levels.last().map_or(graph, |(_, graph)| graph);
    let mut best = Best::default();
    let order = coarsest.order();
    for cut in initial::orders(coarsest) {
        let stage_of = initial::contiguous(coarsest, terms, &cut);
        let mut loads = Loads::new(coarsest, terms, stage_of);
        refine(&mut loads, &order, objective, &mut Effort(EFFORT));
        best.enter(&loads, objective);
    }
    let mut stage_of = best.stage_of;
    for level in (0..levels.len()).rev() {
        let (group_of, _) = &levels[level];
        stage_of = group_of.iter().map(|group| stage_of[*group]).collect();
        if level > 0 {
            let fine = &levels[level - 1].1;
            let mut loads = Loads::new(fine, terms, stage_of);
            refine(&mut loads, &fine.order(), objective, &mut Effort(EFFORT));
            stage_of = loads.stage_of().to_vec();
        }
    }
    stage_of
}
