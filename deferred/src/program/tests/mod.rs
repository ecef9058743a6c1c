//! Programs with our liveness against programs without any, and against Burn.

mod frees;
mod random_programs;

use burn::tensor::{Device, TensorData};
use burn_ir::{IrVisitorMut, OperationIr, TensorIr, TensorStatus};
use tinderbox_fake::{DynTensor, Recording, ValueId};

use super::{Executor, Program, RunContext, Step};
use crate::random::Seed;

/// The same program with every value kept until the end, and none worked on in place.
fn without_liveness(program: &Program) -> Program {
    struct Keep;
    impl IrVisitorMut for Keep {
        fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
            if tensor.status == TensorStatus::ReadWrite {
                tensor.status = TensorStatus::ReadOnly;
            }
        }
    }
    let mut program = program.clone();
    let frees = |step: &Step| matches!(step, Step::Operation(operation) if matches!(**operation, OperationIr::Drop(_)));
    program.steps.retain(|step| !frees(step));
    for step in &mut program.steps {
        if let Step::Operation(operation) = step {
            operation.visit_mut(&mut Keep);
        }
    }
    program
}

/// Runs a program on the CPU, in the context of initialization with seed 0.
fn run(program: &Program, inputs: Vec<DynTensor>) -> Vec<TensorData> {
    let executable = Executor::new(&Device::flex())
        .unwrap()
        .load(program.clone());
    let context = RunContext::initialization(Seed::new(0));
    data(&executable.run(inputs, &context).unwrap())
}

fn data(tensors: &[DynTensor]) -> Vec<TensorData> {
    tensors
        .iter()
        .map(|tensor| tensor.to_data().unwrap())
        .collect()
}

fn value_of(recording: &Recording, tensor: &DynTensor) -> ValueId {
    recording.value_of(tensor.captured_id().unwrap()).unwrap()
}
