//! Programs on values other than tensors, with the same liveness.

use burn::tensor::{Tensor, TensorData};
use burn_ir::{OperationIr, TensorId};
use tinderbox_fake::{DynTensor, RecordOptions, ValueId, record};

use super::super::{Interpreter, Program, RandomKeys, RandomValues, Step};
use super::value_of;
use crate::ProgramError;

/// Counts the operations that a value depends on, the operations of a shared operand as often as it is read.
pub(super) struct Count;

impl Interpreter for Count {
    type Value = usize;
    type Error = ProgramError;

    fn constant(&mut self, _: ValueId, _: &TensorData) -> Result<usize, ProgramError> {
        Ok(0)
    }

    fn operation(
        &mut self,
        operation: &OperationIr,
        inputs: &[usize],
        outputs: &mut Vec<usize>,
    ) -> Result<(), ProgramError> {
        let made = inputs.iter().sum::<usize>() + 1;
        outputs.extend(operation.outputs().map(|_| made));
        Ok(())
    }

    fn random(&mut self, _: RandomValues<'_>) -> Result<usize, ProgramError> {
        Ok(0)
    }
}

/// `(x + y) * (x + y) - x`, for inputs `x` and `y`.
fn program() -> Program {
    let (values, recording) = record(&RecordOptions::default(), |device| {
        let x = Tensor::<1>::zeros([2], device);
        let y = Tensor::<1>::ones([2], device);
        let sum = x.clone() + y.clone();
        let result = sum.clone() * sum - x.clone();
        [x, y, result].map(DynTensor::from)
    })
    .unwrap();
    let [x, y, result] = values.map(|tensor| value_of(&recording, &tensor));
    let graph = recording.graph();
    let keys = RandomKeys::new();
    Program::new(graph, graph.node_ids(), &[x, y], &[result], &keys).unwrap()
}

#[test]
fn values_go_through_the_steps() {
    let made = program().interpret(&mut Count, vec![0, 0]).unwrap();
    // One sum, read twice by a product; and a difference.
    assert_eq!(made, [4]);
    let error = program().interpret(&mut Count, vec![0]).unwrap_err();
    insta::assert_snapshot!(error, @"the program has 2 inputs, found 1");
}

/// The same program, in which every operation that reads the value uses it last.
fn freed_by_all(mut program: Program, value: TensorId) -> Program {
    program.last_uses = vec![value];
    for step in &mut program.steps {
        if let Step::Operation { node, last_uses } = step {
            let mut inputs = program.nodes[node.index()].operation.inputs();
            let reads = inputs.any(|t| t.id == value);
            *last_uses = if reads { 0..1 } else { 0..0 };
        }
    }
    program
}

#[test]
fn a_value_is_gone_after_its_last_use() {
    let freed_too_early = |value: TensorId| {
        let program = freed_by_all(program(), value);
        let error = program.interpret(&mut Count, vec![0, 0]).unwrap_err();
        error.to_string()
    };
    let program = program();
    let Step::Operation { node, .. } = &program.steps[0] else {
        panic!("the sum is first");
    };
    let sum = program.nodes[node.index()].operation.outputs().next();
    // `x` is read by the sum and by the difference.
    let x = TensorId::new(program.inputs()[0].index() as u64);
    insta::assert_snapshot!(freed_too_early(x), @"NumericFloat.Sub reads %0, which is not available: a program has inputs, constants and results of earlier operations, until they are freed");
    // The product reads the sum twice, in an order that the interpreter chooses.
    insta::assert_snapshot!(freed_too_early(sum.unwrap().id), @"NumericFloat.Mul reads %2, which is not available: a program has inputs, constants and results of earlier operations, until they are freed");
}

#[test]
fn a_value_that_was_dropped_or_never_computed_can_not_be_read() {
    let mut without_sum = program();
    without_sum.steps.remove(0);
    let error = without_sum.interpret(&mut Count, vec![0, 0]).unwrap_err();
    insta::assert_snapshot!(error, @"NumericFloat.Mul reads %2, which is not available: a program has inputs, constants and results of earlier operations, until they are freed");
    let mut dropped = program();
    let is_drop = |step: &Step| matches!(step, Step::Free(_));
    let drop = dropped.steps.iter().position(is_drop).unwrap();
    let drop = dropped.steps.remove(drop);
    dropped.steps.insert(1, drop);
    let error = dropped.interpret(&mut Count, vec![0, 0]).unwrap_err();
    insta::assert_snapshot!(error, @"NumericFloat.Mul reads %2, which is not available: a program has inputs, constants and results of earlier operations, until they are freed");
}
