//! Divides a forward into blocks by the module tree, and computes the bytes of each.

use std::collections::BTreeSet;

use tinderbox_planner::Partition;

use super::{BlockProfile, Spread};
use crate::cut::{Binding, Phase, StagePrograms};
use crate::plan::{Planning, transient_bytes};
use crate::schedule::{Compute, Edge, RankIndex, StageIndex};

/// Divides the operations into runs whose modules have the same path down to a depth, or down to a
/// module that is not divided, each with its name and operations.
pub(super) fn of_chain(
    planning: &Planning<'_>,
    depth: usize,
    whole: &[String],
) -> Vec<BlockProfile> {
    let mut blocks: Vec<BlockProfile> = Vec::new();
    for position in 0..planning.chain.nodes().len() {
        let module = planning.chain.module(position);
        let types = planning.types_of(module);
        let name = block_of(module, types, depth, whole);
        match blocks.last_mut() {
            Some(block) if block.name == name => block.operations.1 = position + 1,
            _ => blocks.push(BlockProfile {
                name: name.to_owned(),
                operations: (position, position + 1),
                ..BlockProfile::default()
            }),
        }
    }
    blocks
}

/// The block of a module: its path cut off at a depth, or after the first module of a type that is not
/// divided. `types` are the types along the path, that of the model first.
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

/// Every block as a stage of its own.
pub(super) fn partition(planning: &Planning<'_>, blocks: &[BlockProfile]) -> Partition {
    let starts: Vec<usize> = blocks.iter().map(|block| block.operations.0).collect();
    let count = blocks.len();
    let ranks = (0..count).map(RankIndex::new).collect();
    let operations = planning.chain.nodes().len();
    Partition::contiguous(operations, &starts, ranks, vec![false; count])
}

/// Adds the bytes of a block that was measured.
pub(super) fn report(
    planning: &Planning<'_>,
    index: usize,
    block: BlockProfile,
    programs: &StagePrograms,
    [forward, backward, input_gradient, weight_gradient]: [Spread; 4],
) -> BlockProfile {
    let graph = planning.joint.graph();
    let phases = programs.backward.as_ref();
    let peak = |phase: Option<&Phase>| -> u64 {
        let Some(phase) = phase else { return 0 };
        let read = phase.program.inputs().iter().copied();
        let made = phase.outputs.iter().map(|(value, _)| *value);
        let gradients = phase.gradients.iter();
        let gradients = gradients.filter_map(|at| planning.joint.gradients()[*at]);
        let held = read.chain(made).chain(gradients);
        let held: u64 = held.map(|value| graph.value(value).bytes()).sum();
        held + transient_bytes(&planning.joint, phase)
    };
    let (parameter_bytes, buffer_bytes) = parameter_bytes(planning, programs);
    let message = |of: &dyn Fn(&Edge) -> bool| -> u64 {
        let sent = programs.sends.iter().chain(&programs.receives);
        let values = sent
            .filter(|(edge, _)| of(edge))
            .flat_map(|(_, values)| values);
        let mut values: Vec<_> = values.copied().collect();
        values.sort_unstable();
        values.dedup();
        values.iter().map(|value| graph.value(*value).bytes()).sum()
    };
    let own = StageIndex::new(index);
    let is_forward = |edge: &Edge| edge.from.compute == Compute::Forward;
    BlockProfile {
        forward,
        backward,
        input_gradient,
        weight_gradient,
        forward_peak_bytes: peak(Some(&programs.forward)),
        backward_peak_bytes: peak(phases.map(|b| &b.whole)),
        saved_bytes: phases.map_or(0, |b| b.activation_bytes),
        saved_for_weight_bytes: phases.map_or(0, |b| b.weight_gradient_bytes),
        parameter_bytes,
        buffer_bytes,
        input_bytes: message(&|edge| is_forward(edge) && edge.to.stage == own),
        output_bytes: message(&|edge| is_forward(edge) && edge.from.stage == own),
        ..block
    }
}

/// Bytes of the parameters that a block reads: trainable ones, and the others.
fn parameter_bytes(planning: &Planning<'_>, programs: &StagePrograms) -> (u64, u64) {
    let computes = Compute::ALL.into_iter();
    let phases = computes.filter_map(|compute| programs.phase(compute));
    let read = phases.flat_map(|phase| &phase.inputs);
    let positions = read.filter_map(|binding| match binding {
        Binding::Parameter(position) => Some(*position),
        _ => None,
    });
    let positions: BTreeSet<usize> = positions.collect();
    let (mut trained, mut others) = (0, 0);
    for (position, parameter) in planning.table.iter().enumerate() {
        if positions.contains(&position) {
            let bytes = match parameter.trainable {
                true => &mut trained,
                false => &mut others,
            };
            *bytes += parameter.bytes;
        }
    }
    (trained, others)
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
