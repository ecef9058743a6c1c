//! K-way partitions by METIS (Karypis and Kumar, *A fast and high quality multilevel scheme for
//! partitioning irregular graphs*, 1998), converted to runnable stages.
//!
//! METIS partitions an undirected graph: the weight of a block is its time and, where the memory of
//! all ranks is limited, its bytes; the weight of an edge is the bytes that its ends exchange. The parts are
//! balanced and exchange little, but they may depend on each other in cycles. So each part becomes a
//! rank, which runs as many stages as the flow of values requires.

mod parts;

use super::graph::Graph;
use super::mixed::{fastest, moved, staged};
use super::partitioner::Found;
use super::terms::Terms;
use crate::{Machine, PlannerError, Step, Work};

/// The maximum number of stages per rank.
const STAGES_PER_RANK: usize = 8;

/// Partitions the blocks of valid work, at least one per rank, with METIS and converts the parts to stages.
///
/// # Errors
///
/// [`PlannerError::TooLarge`] for more blocks and values than METIS can number,
/// [`PlannerError::Metis`] where METIS fails, [`PlannerError::MetisStages`] where its parts need too many
/// stages, and the errors of [`predict()`](crate::predict()).
pub(super) fn metis(work: &Work, machine: &Machine, step: &Step) -> Result<Found, PlannerError> {
    let ranks = machine.ranks();
    let graph = Graph::of_work(work, step);
    let rank_of = parts::parts(&graph, machine.rank_models())?;
    let most = ranks.saturating_mul(STAGES_PER_RANK);
    let staged = staged(&graph, &rank_of, machine.rank_models(), most);
    if staged.is_empty() {
        return Err(PlannerError::MetisStages { most });
    }
    let in_flight = step.per_replica().min(ranks);
    let moved = staged.into_iter().map(|staged| {
        let terms = Terms::of_map(machine, step, &staged.rank_of, in_flight);
        moved(&graph, &terms, staged.stage_of).1
    });
    fastest(work, machine, step, moved)
}
