//! The memory of ranks by purpose.

use std::collections::BTreeMap;

use tinderbox_schedule::RankIndex;

use super::{PlanFile, PlanStage};
use crate::RankMemory;

/// A part of a rank's memory: its name, and its bytes.
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

impl PlanStage {
    /// Bytes of the parameters that the stage holds, replicas included.
    pub(super) const fn held_bytes(&self) -> u64 {
        self.parameter_bytes.saturating_add(self.replica_bytes)
    }
}

/// The stages of each rank that has any, ascending.
pub(super) fn stages_by_rank(plan: &PlanFile) -> BTreeMap<RankIndex, Vec<&PlanStage>> {
    let mut ranks: BTreeMap<RankIndex, Vec<&PlanStage>> = BTreeMap::new();
    for stage in &plan.stages {
        ranks.entry(stage.rank).or_default().push(stage);
    }
    ranks
}
