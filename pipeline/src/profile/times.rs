//! Computes the times of operations from the times of their blocks.

use std::collections::BTreeMap;

use tinderbox_planner::Rates;

use super::{BlockProfile, Profile, blocks};
use crate::ProfileError;
use crate::batch::Batch;
use crate::plan::Planning;
use crate::schedule::Compute;
use crate::trace::Trace;
use crate::work::OperationTimes;

impl Profile {
    /// Returns the times of every operation, for [`Planner::times`](crate::Planner::times): the time of
    /// a block's program is divided among its operations in proportion to their estimated times.
    ///
    /// # Errors
    ///
    /// When the profile is of another program.
    pub fn times<B: Batch>(&self, trace: &Trace<B>) -> Result<OperationTimes, ProfileError> {
        let planning = Planning::new(trace, None, &Rates::default(), None)?;
        let found = planning.graph_digest();
        if found != self.graph {
            return Err(ProfileError::OtherProgram {
                expected: self.graph.clone(),
                found,
            });
        }
        let (blocks, programs) = blocks::divide(&planning, self)?;
        let operations = |blocks: &[BlockProfile]| -> Vec<_> {
            blocks.iter().map(|block| block.operations).collect()
        };
        if operations(&blocks) != operations(&self.blocks) {
            return Err(ProfileError::OtherBlocks {
                expected: self.blocks.len(),
                found: blocks.len(),
            });
        }
        let analytic = planning.times();
        let (mut whole, mut halves) = (BTreeMap::new(), BTreeMap::new());
        for (block, programs) in self.blocks.iter().zip(&programs) {
            for (compute, spread) in Compute::ALL.into_iter().zip(block.times()) {
                let Some(phase) = programs.phase(compute) else {
                    continue;
                };
                let times = match compute {
                    Compute::Forward | Compute::Backward => &mut whole,
                    _ => &mut halves,
                };
                let all = analytic.of_all(&phase.nodes, compute);
                for node in &phase.nodes {
                    let part = u128::from(analytic.of(*node, compute));
                    let time = u128::from(spread.median_ns) * part / u128::from(all.max(1));
                    let time = u64::try_from(time).unwrap_or(u64::MAX);
                    // A recomputed operation takes as long as its first computation.
                    times.entry(*node).or_insert(time);
                }
            }
        }
        Ok(analytic.clone().with(whole, halves))
    }
}
