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

pub(super) use stages::staged;

use super::chain::chain;
use super::graph::Graph;
use super::loads::{Loads, Score};
use super::partitioner::Found;
use super::refine::refine;
use super::terms::Terms;
use crate::{Machine, Partition, PlannerError, Predicted, Step, Work, predict};

/// The maximum number of stages per rank: each stage adds actions for every micro-batch.
const STAGES_PER_RANK: usize = 4;

/// The number of candidates with the best scores that are simulated.
const CANDIDATES: usize = 4;

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
/// Time: the time of `chain`, blocks times a window of the order for the groups, a fixed number of moves per candidate, and
/// a schedule search for each candidate that is simulated. Memory: values times stages.
///
/// # Errors
///
/// The error of [`predict()`] where no candidate has a schedule.
pub(super) fn mixed(work: &Work, machine: &Machine, step: &Step) -> Result<Found, PlannerError> {
    let graph = Graph::of_work(work, step);
    let levels = groups::levels(work, &graph, machine);
    // Named schedules have as many micro-batches in flight as there are ranks; where memory is limited,
    // a search may find lists with fewer for faster partitions.
    let mut in_flight = step.per_replica().min(machine.ranks()).max(1);
    let chained = moved_chain(work, machine, step, &graph);
    let mut candidates: Vec<Partition> = chained.into_iter().collect();
    loop {
        for candidate in of_groups(&levels, machine, step, &graph, in_flight) {
            if !candidates.contains(&candidate) {
                candidates.push(candidate);
            }
        }
        if !machine.has_limit() || in_flight == 1 {
            return fastest(work, machine, step, candidates);
        }
        in_flight /= 2;
    }
}

/// The contiguous stages of `chain` after moves of blocks: some exchange values with stages that
/// are not adjacent. `None` where there are fewer blocks than stages.
fn moved_chain(work: &Work, machine: &Machine, step: &Step, graph: &Graph) -> Option<Partition> {
    let unlimited = || chain(work, &machine.clone().with_memory_limit(u64::MAX), step);
    let chained = chain(work, machine, step).or_else(|_| unlimited()).ok()?;
    let terms = Terms::of_machine(machine, step);
    let mut loads = Loads::new(graph, &terms, chained.partition.stage_of);
    refine(&mut loads, &graph.order(), CHAIN_EFFORT);
    Some(loads.partition())
}

/// The candidates of groups with the best scores where each stage has `in_flight` micro-batches in flight.
fn of_groups(
    levels: &[groups::Level],
    machine: &Machine,
    step: &Step,
    graph: &Graph,
    in_flight: usize,
) -> impl Iterator<Item = Partition> + use<> {
    let most = machine.ranks().saturating_mul(STAGES_PER_RANK);
    let mut found: Vec<(Score, Partition)> = Vec::new();
    for (group_of, coarse) in levels {
        let rank_of = assign::assign(coarse, machine, in_flight as u64);
        for staged in staged(coarse, &rank_of, machine.rank_models(), most) {
            let terms = Terms::of_map(machine, step, &staged.rank_of, in_flight);
            // Groups move between stages, and then blocks.
            let (_, moved) = moved(coarse, &terms, staged.stage_of);
            let stage_of = group_of.iter().map(|group| moved.stage_of[*group]);
            let moved = self::moved(graph, &terms, stage_of.collect());
            if found.iter().all(|(_, other)| *other != moved.1) {
                found.push(moved);
            }
        }
    }
    found.sort_by_key(|(score, partition)| (*score, partition.stages()));
    let best = found.into_iter().map(|(_, partition)| partition);
    best.take(CANDIDATES)
}

/// Moves nodes between stages. The memory may count more micro-batches in flight than a schedule has; then a partition may
/// fit although this function finds none.
pub(super) fn moved(graph: &Graph, terms: &Terms<'_>, stage_of: Vec<usize>) -> (Score, Partition) {
    let mut loads = Loads::new(graph, terms, stage_of);
    refine(&mut loads, &graph.order(), EFFORT);
    (loads.score(), loads.partition())
}

/// The fastest partition by the simulator. Partitions within the memory of the ranks come first; ties are broken by
/// fewer crossing bytes, then by order.
pub(super) fn fastest(
    work: &Work,
    machine: &Machine,
    step: &Step,
    candidates: impl IntoIterator<Item = Partition>,
) -> Result<Found, PlannerError> {
    let key = |predicted: &Predicted| {
        let prediction = &predicted.prediction;
        let is_over = prediction.over_limit(machine).is_some();
        (is_over, prediction.step_ns, prediction.crossing_bytes)
    };
    let mut best: Option<Found> = None;
    let mut error = None;
    for partition in candidates {
        match predict(work, machine, step, &partition) {
            Ok(predicted) => {
                let is_better = |(_, other): &(_, Predicted)| key(&predicted) < key(other);
                if best.as_ref().is_none_or(is_better) {
                    best = Some((partition, predicted));
                }
            }
            Err(refused) => error = error.or(Some(refused)),
        }
    }
    let (stages, blocks) = (machine.ranks(), work.blocks.len());
    best.ok_or(error.unwrap_or(PlannerError::TooManyStages { stages, blocks }))
}
