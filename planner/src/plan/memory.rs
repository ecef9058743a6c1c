//! What ranks hold, by what it is for.

use std::collections::BTreeMap;

use tinderbox_schedule::{RankIndex, StageIndex};

use super::PlanFile;
use crate::RankMemory;

/// A part of a rank's memory: what it is called, and its bytes.
pub(super) type Part = (&'static str, fn(&RankMemory) -> u64);

/// All parts of a rank's memory.
pub(super) const PARTS: [Part; 6] = [
    ("parameters", |memory| memory.parameters),
    ("gradients", |memory| memory.gradients),
    ("optimizer", |memory| memory.optimizer),
    ("activations", |memory| memory.activations),
    ("transient", |memory| memory.transient),
    ("buffers", |memory| memory.buffers),
];

/// What one rank holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) rank: RankIndex,
    /// Bytes in the order of [`PARTS`].
    pub(super) parts: [u64; PARTS.len()],
    pub(super) total: u64,
    pub(super) limit: Option<u64>,
}

/// What every rank of the prediction holds.
pub(super) fn of_ranks(plan: &PlanFile) -> Vec<Held> {
    let ranks = plan.prediction.ranks.iter().map(|rank| Held {
        rank: rank.rank,
        parts: PARTS.map(|(_, bytes)| bytes(&rank.memory)),
        total: rank.memory.total(),
        limit: plan.machine.rank(rank.rank).memory_bytes,
    });
    ranks.collect()
}

/// The stages of each rank that has one, ascending.
pub(super) fn stages_by_rank(plan: &PlanFile) -> BTreeMap<RankIndex, Vec<StageIndex>> {
    let mut ranks: BTreeMap<RankIndex, Vec<StageIndex>> = BTreeMap::new();
    for stage in &plan.stages {
        ranks.entry(stage.rank).or_default().push(stage.stage);
    }
    ranks
}
