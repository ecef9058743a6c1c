//! Marks the last use of every value, so that its memory is freed or used again there.

use std::collections::{HashMap, HashSet};

use burn_ir::{IrVisitorMut, OperationIr, TensorId, TensorIr, TensorStatus};

use super::{Program, Step, tensor_id};

/// Rewrites the status of every tensor in the program.
///
/// `ReadWrite` at the last use lets the backend work in place. An operation that reads one value
/// twice gets `ReadOnly` for both and a `Drop` after it, because the interpreter may fetch its
/// operands in another order than it lists them. Values that nothing reads are dropped where they
/// are made, inputs at the start.
pub(super) fn mark(program: &mut Program) {
    let mut left: HashMap<TensorId, usize> = HashMap::new();
    for step in &program.steps {
        if let Step::Operation(operation) = step {
            for input in operation.inputs() {
                *left.entry(input.id).or_default() += 1;
            }
        }
    }
    let kept: HashSet<TensorId> = program.outputs.iter().map(|out| out.id).collect();

    let mut steps = Vec::with_capacity(program.steps.len());
    for (value, (shape, dtype)) in program.inputs.iter().zip(&program.input_types) {
        let id = tensor_id(*value);
        if !left.contains_key(&id) && !kept.contains(&id) {
            steps.push(free(TensorIr {
                id,
                shape: shape.clone(),
                status: TensorStatus::ReadWrite,
                dtype: *dtype,
            }));
        }
    }
    for (value, _) in &program.constants {
        debug_assert!(left.contains_key(&tensor_id(*value)) || kept.contains(&tensor_id(*value)));
    }
    for mut step in std::mem::take(&mut program.steps) {
        let mut drops = Vec::new();
        match &mut step {
            Step::Operation(operation) => {
                let mut here: HashMap<TensorId, usize> = HashMap::new();
                for input in operation.inputs() {
                    *here.entry(input.id).or_default() += 1;
                }
                for (id, uses) in &here {
                    *left.get_mut(id).expect("every use was counted") -= uses;
                }
                let mut seen = HashSet::new();
                for input in operation.inputs() {
                    let last = left[&input.id] == 0 && !kept.contains(&input.id);
                    if last && here[&input.id] > 1 && seen.insert(input.id) {
                        drops.push(input.clone());
                    }
                }
                let unread: Vec<TensorIr> = operation
                    .outputs()
                    .filter(|out| !left.contains_key(&out.id) && !kept.contains(&out.id))
                    .cloned()
                    .collect();
                drops.extend(unread);
                operation.visit_mut(&mut Mark {
                    left: &left,
                    here: &here,
                    kept: &kept,
                });
            }
            Step::Random { out, .. } => {
                if !left.contains_key(&out.id) && !kept.contains(&out.id) {
                    continue;
                }
            }
        }
        steps.push(step);
        steps.extend(drops.into_iter().map(free));
    }
    program.steps = steps;
}

fn free(mut tensor: TensorIr) -> Step {
    tensor.status = TensorStatus::ReadWrite;
    Step::Operation(Box::new(OperationIr::Drop(tensor)))
}

struct Mark<'a> {
    left: &'a HashMap<TensorId, usize>,
    here: &'a HashMap<TensorId, usize>,
    kept: &'a HashSet<TensorId>,
}

impl IrVisitorMut for Mark<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        if tensor.status == TensorStatus::NotInit {
            return;
        }
        let last = self.left.get(&tensor.id) == Some(&0) && !self.kept.contains(&tensor.id);
        let once = self.here.get(&tensor.id) == Some(&1);
        tensor.status = if last && once {
            TensorStatus::ReadWrite
        } else {
            TensorStatus::ReadOnly
        };
    }
}
