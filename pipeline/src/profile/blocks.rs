//! Divides a forward into blocks by the module tree, computes the bytes of each block, and computes the times of operations
//! from the times of their blocks.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tinderbox_fake::ValueId;
use tinderbox_planner::{Partition, Rates};

use super::{BlockProfile, BlockSizes, Profile, Spread};
use crate::cut::StagePrograms;
use crate::plan::{Planning, graph_digest};
use crate::schedule::{Compute, Edge, RankIndex, StageIndex};
use crate::{Batch, JointGraph, OperationTimes, PlanError, ProfileError, Trace};

/// Divides the operations into runs whose modules have the same path down to the depth of a profile, or
/// down to a module that is not divided. Returns each with its name and operations, and the programs of
/// every block as a stage of its own.
pub(super) fn divide(
    planning: &Planning,
    profile: &Profile,
) -> Result<(Vec<BlockProfile>, Vec<StagePrograms>), PlanError> {
    let joint = &planning.joint;
    let parameters = joint.table().iter();
    let types = parameters.map(|one| (one.path.module(), one.modules.as_str()));
    let types: HashMap<&str, &str> = types.collect();
    let operations = joint.forward().nodes().len();
    let mut blocks: Vec<BlockProfile> = Vec::new();
    for position in 0..operations {
        let module = joint.module_at(position);
        let types = types.get(module).copied().unwrap_or("");
        let name = block_of(module, types, profile.depth, &profile.basic_blocks);
        match blocks.last_mut() {
            Some(block) if block.name == name => block.operations.1 = position + 1,
            _ => blocks.push(BlockProfile {
                name: name.to_owned(),
                operations: (position, position + 1),
                ..BlockProfile::default()
            }),
        }
    }
    let starts: Vec<usize> = blocks.iter().map(|block| block.operations.0).collect();
    let ranks = (0..blocks.len()).map(RankIndex::new).collect();
    let recompute = vec![false; blocks.len()];
    let partition = Partition::contiguous(operations, &starts, ranks, recompute);
    Ok((blocks, planning.divide(&partition)?.programs))
}

/// The block of a module: its path cut off at a depth, or after the first module of a type that is not
/// divided. `types` are the types along the path, beginning with the type of the model.
fn block_of<'a>(module: &'a str, types: &str, depth: usize, whole: &[String]) -> &'a str {
    let is_whole = |name: &str| whole.iter().any(|known| known == name);
    let mut types = types.split('.');
    if types.next().is_some_and(is_whole) {
        return "";
    }
    let mut end = 0;
    for (level, part) in module.split('.').enumerate().take(depth) {
        end += part.len() + usize::from(level > 0);
        if types.next().is_some_and(is_whole) {
            break;
        }
    }
    &module[..end]
}

/// Adds the times and the bytes of a block that was measured.
pub(super) fn report(
    joint: &JointGraph,
    index: usize,
    block: BlockProfile,
    programs: &StagePrograms,
    [forward, backward, input_gradient, weight_gradient]: [Spread; 4],
) -> BlockProfile {
    let peak = |compute| {
        let phase = programs.phase(compute);
        phase.map_or(0, |phase| phase.peak_bytes(joint))
    };
    let parameters = programs.parameters();
    let parameters = |is_trainable: bool| -> u64 {
        let parameters = parameters.iter().map(|at| joint.parameter(*at));
        let kept = parameters.filter(|parameter| parameter.trainable == is_trainable);
        kept.map(|parameter| parameter.bytes).sum()
    };
    let messages = |of: &dyn Fn(&Edge) -> bool| {
        let all = programs.sends.iter().chain(&programs.receives);
        let of_forward = all.filter(|(edge, _)| edge.from.compute == Compute::Forward && of(edge));
        let values: BTreeSet<&ValueId> = of_forward.flat_map(|(_, values)| values).collect();
        joint.graph().bytes(values)
    };
    let own = StageIndex::new(index);
    BlockProfile {
        forward,
        backward,
        input_gradient,
        weight_gradient,
        sizes: BlockSizes {
            forward_peak_bytes: peak(Compute::Forward),
            backward_peak_bytes: peak(Compute::Backward),
            saved_bytes: programs.activation_bytes,
            saved_for_weight_bytes: programs.weight_gradient_bytes,
            parameter_bytes: parameters(true),
            buffer_bytes: parameters(false),
            input_bytes: messages(&|edge| edge.to.stage == own),
            output_bytes: messages(&|edge| edge.from.stage == own),
        },
        ..block
    }
}

impl Profile {
    /// Returns the times of every operation, for [`Planner::times`](crate::Planner::times): the time of
    /// a block's program is divided among its operations in proportion to their estimated times.
    ///
    /// # Errors
    ///
    /// When the profile is of another program.
    pub fn times<B: Batch>(&self, trace: &Trace<B>) -> Result<OperationTimes, ProfileError> {
        let planning = Planning::new(trace, None, &Rates::default(), None)?;
        let (blocks, programs) = divide(&planning, self)?;
        let operations = |block: &BlockProfile| block.operations;
        let known = self.blocks.iter().map(operations);
        let has_blocks = known.eq(blocks.iter().map(operations));
        if graph_digest(&planning.joint) != self.graph || !has_blocks {
            return Err(ProfileError::OtherProgram);
        }
        let analytic = planning.times;
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
        Ok(analytic.with(whole, halves))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_end_at_a_depth_or_at_a_type() {
        let types = "Gpt.Vec.Block.Attention.Linear";
        let module = "blocks.3.attention.query";
        for (depth, whole, expected) in [
            (1, vec![], "blocks"),
            (2, vec![], "blocks.3"),
            (3, vec![], "blocks.3.attention"),
            (9, vec![], module),
            (9, vec!["Block"], "blocks.3"),
            (9, vec!["Attention", "Block"], "blocks.3"),
            (1, vec!["Block"], "blocks"),
            (9, vec!["Gpt"], ""),
        ] {
            let whole: Vec<String> = whole.into_iter().map(str::to_owned).collect();
            assert_eq!(
                block_of(module, types, depth, &whole),
                expected,
                "{depth} {whole:?}"
            );
        }
        assert_eq!(block_of("", "", 2, &[]), "");
    }
}
