//! Marks the last use of every value, where its memory is freed or reused.

use std::collections::{HashMap, HashSet};

use burn_ir::{TensorId, TensorIr, TensorStatus};

use super::operation::{tensor_id, tensor_ir};
use super::{Program, Step};

/// Records the last uses in a program's steps, and adds steps that free other values.
///
/// A value that an operation reads once, and last, may be modified in place. One that it reads twice
/// is freed after it instead, because the interpreter may fetch its operands in another order than it
/// lists them. Unread values are freed where they are computed, unread inputs at the start.
pub(super) fn mark(program: &mut Program) {
    let nodes = program.nodes.clone();
    let mut left: HashMap<TensorId, u32> = HashMap::new();
    for step in &program.steps {
        if let Step::Operation { node, .. } = step {
            for input in nodes[node.index()].operation.inputs() {
                *left.entry(input.id).or_default() += 1;
            }
        }
    }
    let kept: HashSet<TensorId> = program.outputs.iter().map(|out| out.id).collect();
    let is_unread =
        |left: &HashMap<TensorId, u32>, id| !left.contains_key(&id) && !kept.contains(&id);

    let mut steps = Vec::with_capacity(program.steps.len());
    for (value, (shape, dtype)) in program.inputs.iter().zip(&program.input_types) {
        let input = tensor_ir(*value, (shape.clone(), *dtype));
        if is_unread(&left, input.id) {
            steps.push(free(input));
        }
    }
    for (value, _) in &program.constants {
        debug_assert!(left.contains_key(&tensor_id(*value)) || kept.contains(&tensor_id(*value)));
    }
    for step in std::mem::take(&mut program.steps) {
        let node = match &step {
            Step::Operation { node, .. } => *node,
            Step::Random(random) if is_unread(&left, random.out.id) => continue,
            Step::Random(_) | Step::Free(_) | Step::Together(_) => {
                steps.push(step);
                continue;
            }
        };
        let operation = &nodes[node.index()].operation;
        for input in operation.inputs() {
            *left.get_mut(&input.id).expect("every use was counted") -= 1;
        }
        let inputs: Vec<&TensorIr> = operation.inputs().collect();
        let mut frees = Vec::new();
        let start = program.last_uses.len() as u32;
        for (position, input) in inputs.iter().enumerate() {
            let is_same = |other: &&TensorIr| other.id == input.id;
            let is_last = left[&input.id] == 0 && !kept.contains(&input.id);
            if !is_last || inputs[..position].iter().any(is_same) {
                continue;
            }
            match inputs[position + 1..].iter().any(is_same) {
                true => frees.push(free((*input).clone())),
                false => program.last_uses.push(input.id),
            }
        }
        let unread = operation.outputs().filter(|out| is_unread(&left, out.id));
        frees.extend(unread.cloned().map(free));
        let last_uses = start..program.last_uses.len() as u32;
        steps.push(Step::Operation { node, last_uses });
        steps.append(&mut frees);
    }
    program.steps = steps;
    program.last_uses.shrink_to_fit();
}

/// Returns the step that frees a value.
pub(super) fn free(mut tensor: TensorIr) -> Step {
    tensor.status = TensorStatus::ReadWrite;
    Step::Free(Box::new(tensor))
}
