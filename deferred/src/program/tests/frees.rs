//! Values are freed directly after their last use.

use std::collections::{BTreeMap, BTreeSet};

use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use proptest::prelude::*;
use tinderbox_fake::ValueId;

use super::random_programs::{GIVEN, calls, fixed_seed, recorded};
use super::without_liveness;
use crate::program::operation::tensor_id;
use crate::program::{Program, RandomKeys, Step};

fn operations(program: &Program) -> impl Iterator<Item = OperationIr> {
    program.steps.iter().map(|step| match step {
        Step::Operation { node, last_uses } => program.operation(*node, last_uses),
        Step::Free(value) => OperationIr::Drop((**value).clone()),
        step => panic!("these programs draw nothing, but here is {step:?}"),
    })
}

fn given(program: &Program) -> impl Iterator<Item = TensorId> {
    let constants = program.constants.iter().map(|(id, _)| id);
    let given = program.inputs.iter().chain(constants);
    given.map(|id| tensor_id(*id))
}

fn kept(program: &Program) -> BTreeSet<TensorId> {
    program.outputs.iter().map(|out| out.id).collect()
}

/// Returns the values that are alive after each operation, by the frees and last uses of the program.
///
/// # Panics
///
/// When a value is read, consumed or freed that is not alive.
fn alive_by_program(program: &Program) -> Vec<BTreeSet<TensorId>> {
    let mut alive: BTreeSet<TensorId> = given(program).collect();
    let mut after: Vec<BTreeSet<TensorId>> = Vec::new();
    for operation in operations(program) {
        let is_consumed = |tensor: &&TensorIr| tensor.status == TensorStatus::ReadWrite;
        if let OperationIr::Drop(value) = &operation {
            let id = value.id;
            assert!(alive.remove(&id), "{id} is freed, and does not exist");
            // A free belongs to the operation before it; a free at the start belongs to none.
            if let Some(last) = after.last_mut() {
                last.clone_from(&alive);
            }
            continue;
        }
        for input in operation.inputs() {
            let id = input.id;
            assert!(alive.contains(&id), "{id} is read, and does not exist");
        }
        for input in operation.inputs().filter(is_consumed) {
            assert!(alive.remove(&input.id), "{} is consumed twice", input.id);
        }
        alive.extend(operation.outputs().map(|output| output.id));
        after.push(alive.clone());
    }
    assert_eq!(alive, kept(program), "alive at the end");
    after
}

/// Returns the same by definition: values that exist after the operation, and are read later or kept.
fn alive_by_definition(program: &Program) -> Vec<BTreeSet<TensorId>> {
    let program = without_liveness(program);
    let mut last_read: BTreeMap<TensorId, usize> = BTreeMap::new();
    for (position, operation) in operations(&program).enumerate() {
        last_read.extend(operation.inputs().map(|input| (input.id, position)));
    }
    let kept = kept(&program);
    let mut there: BTreeSet<TensorId> = given(&program).collect();
    let mut after = Vec::new();
    for (position, operation) in operations(&program).enumerate() {
        there.extend(operation.outputs().map(|output| output.id));
        let needed = |id: &&TensorId| {
            kept.contains(id) || last_read.get(id).is_some_and(|last| *last > position)
        };
        after.push(there.iter().filter(needed).copied().collect());
    }
    after
}

proptest! {
    #![proptest_config(fixed_seed(300))]

    #[test]
    fn values_are_freed_at_their_last_use(
        seed in 0..1000_u64,
        calls in calls(),
        kept in prop::collection::vec(any::<prop::sample::Index>(), 1..6),
    ) {
        let (recording, ids) = recorded(seed, &calls);
        let outputs: Vec<ValueId> = kept.iter().map(|index| *index.get(&ids)).collect();
        let graph = recording.graph();
        let keys = RandomKeys::new();
        for inputs in [&ids[..0], &ids[..GIVEN]] {
            let program = Program::new(graph, graph.node_ids(), inputs, &outputs, &keys).unwrap();
            prop_assert_eq!(alive_by_program(&program), alive_by_definition(&program));
        }
    }
}
