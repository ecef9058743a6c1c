//! The step that a plan is for.

use serde::{Deserialize, Serialize};
use tinderbox_schedule::{RankIndex, ScheduleKind};

/// What a training step consists of beside the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The schedule.
    pub schedule: ScheduleKind,
    /// Micro-batches of a step.
    pub micro_batches: usize,
    /// Bytes of optimizer state per byte of a trainable parameter: 2 for Adam in the parameters' own
    /// precision.
    pub optimizer_states: u64,
    /// Whether a stage may make its activations again in the backward where memory asks for it.
    pub may_recompute: bool,
}

impl Step {
    /// A step under a schedule, with Adam, where every activation is kept.
    #[must_use]
    pub const fn new(schedule: ScheduleKind, micro_batches: usize) -> Self {
        Self {
            schedule,
            micro_batches,
            optimizer_states: 2,
            may_recompute: false,
        }
    }

    /// The same step, whose stages may make their activations again.
    #[must_use]
    pub const fn with_recomputation(self) -> Self {
        Self {
            may_recompute: true,
            ..self
        }
    }

    /// Whether its backwards run in two halves.
    pub(crate) const fn splits_backward(&self) -> bool {
        !matches!(
            self.schedule,
            ScheduleKind::GPipe
                | ScheduleKind::OneFOneB
                | ScheduleKind::LoopedBfs
                | ScheduleKind::Interleaved1F1B
        )
    }
}

/// Which stage runs each block, which rank each stage, and which stages make activations again.
///
/// Stages are numbered in an order in which they can run: no value goes from a stage to a lower one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// The stage of each block.
    pub stage_of: Vec<usize>,
    /// The rank of each stage.
    pub stage_to_rank: Vec<RankIndex>,
    /// Whether each stage makes its activations again in the backward.
    pub recompute: Vec<bool>,
}

impl Partition {
    /// Contiguous stages: stage `k` begins with block `starts[k]`, and `starts[0]` is 0.
    #[must_use]
    pub fn contiguous(
        blocks: usize,
        starts: &[usize],
        stage_to_rank: Vec<RankIndex>,
        recompute: Vec<bool>,
    ) -> Self {
        let mut stage_of = vec![0; blocks];
        for (stage, start) in starts.iter().enumerate() {
            for of in stage_of.iter_mut().skip(*start) {
                *of = stage;
            }
        }
        Self {
            stage_of,
            stage_to_rank,
            recompute,
        }
    }

    /// Number of stages.
    #[must_use]
    pub fn stages(&self) -> usize {
        self.stage_to_rank.len()
    }
}
