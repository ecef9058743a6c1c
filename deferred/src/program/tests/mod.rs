//! Programs with liveness compared with programs without it, and with Burn.

mod frees;
mod interpret;
mod random_programs;
mod together;

use burn::tensor::{Device, TensorData};
use tinderbox_fake::{DynTensor, Recording, ValueId};

use super::{Executor, Program, RunContext, Step};
use crate::random::Seed;

/// The same program with every value kept until the end, and none modified in place.
fn without_liveness(program: &Program) -> Program {
    let mut program = program.clone();
    program.steps.retain(|step| !matches!(step, Step::Free(_)));
    program.last_uses.clear();
    for step in &mut program.steps {
        match step {
            Step::Operation { last_uses, .. } => *last_uses = 0..0,
            Step::Together(together) => {
                let operations = together.operations.iter_mut();
                operations.for_each(|(_, last_uses)| *last_uses = 0..0);
            }
            Step::Free(_) | Step::Random(_) => {}
        }
    }
    program
}

/// Runs a program on the CPU, in the context of initialization with seed 0.
fn run(program: &Program, inputs: Vec<DynTensor>) -> Vec<TensorData> {
    let executor = Executor::new(&Device::flex()).unwrap();
    let executable = executor.load(program.clone());
    let context = RunContext::initialization(Seed::new(0));
    data(&executable.run(inputs, &context).unwrap())
}

fn data(tensors: &[DynTensor]) -> Vec<TensorData> {
    tensors.iter().map(|t| t.to_data().unwrap()).collect()
}

fn value_of(recording: &Recording, tensor: &DynTensor) -> ValueId {
    recording.value(tensor).unwrap()
}

fn values_of(recording: &Recording, tensors: &[DynTensor]) -> Vec<ValueId> {
    tensors.iter().map(|t| value_of(recording, t)).collect()
}
