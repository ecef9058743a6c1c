//! Divides a forward into blocks by the module tree, and computes the bytes of each.

use std::collections::{BTreeSet, HashMap};

use tinderbox_fake::ValueId;
use tinderbox_planner::Partition;

use super::{BlockProfile, BlockSizes, Profile, Spread};
use crate::PlanError;
use crate::cut::StagePrograms;
use crate::plan::Planning;
use crate::schedule::{Compute, Edge, RankIndex, StageIndex};
use crate::trace::JointGraph;

/// Divides the operations into runs whose modules have the same path down to the depth of a profile, or
/// down to a module that is not divided. Returns each with its name and operations, and the programs of
/// every block as a stage of its own.
pub(super) fn divide(
    planning: &Planning,
    profile: &Profile,
) -> Result<(Vec<BlockProfile>, Vec<StagePrograms>), PlanError> {
    let joint = &planning.joint;
    let parameters = joint.table().iter();
    let types: HashMap<&str, &str> = parameters
        .map(|parameter| (parameter.path.module(), parameter.modules.as_str()))
        .collect();
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
/// divided. `types` are the types along the path, the model's first.
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

/// Adds the bytes of a block that was measured.
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
