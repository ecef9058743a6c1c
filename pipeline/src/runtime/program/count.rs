//! The program of what a micro-batch counts, which decides its weight in the loss.

use std::sync::Arc;

use burn::tensor::Device;
use tinderbox_deferred::{Executable, Executor, Program, ProgramError, RunContext};
use tinderbox_fake::DynTensor;

use super::bytes::CutBytes;
use super::carried::CarriedTensors;
use super::indices::IndexPlaces;
use crate::ActionError;
use crate::certify::CertifiedPrograms;
use crate::runtime::caught::caught;
use crate::trace::{Given, JointGraph, LossOver};

/// Computes the count of a micro-batch on the CPU.
#[derive(Debug)]
pub(crate) struct CountProgram {
    program: Executable,
    /// The positions in the batch of the tensors that it reads.
    inputs: Vec<usize>,
}

impl CountProgram {
    pub(crate) fn of(&self, batch: &[DynTensor], context: &RunContext) -> Result<f64, ActionError> {
        let inputs = self.inputs.iter();
        let inputs = inputs.map(|at| batch[*at].clone().to_device(&Device::flex()));
        let inputs = inputs.collect::<Result<_, _>>()?;
        // Where indices are not checked, Burn panics on one that is out of range.
        let made = caught(|| Ok(self.program.run(inputs, context)?))?;
        let data = made[0].to_data()?;
        Ok(data.iter::<f64>().next().unwrap_or(f64::NAN))
    }
}

/// What a program's loss is a mean or a sum over, with the program of its count.
pub(crate) fn count_of(
    joint: &JointGraph,
    check_indices: bool,
) -> Result<LossOver<CountProgram>, ProgramError> {
    let graph = joint.graph();
    let position = |value| match joint.given(value)? {
        Given::Input(position) => Some(position),
        _ => None,
    };
    joint.loss_over().try_map(|count| {
        let slice = graph.backward_slice([count], |value| position(value).is_some());
        let read = slice.leaves.iter().filter_map(|value| position(*value));
        let inputs: Vec<usize> = read.collect();
        let values: Vec<_> = inputs.iter().map(|at| joint.inputs()[*at].value).collect();
        let program = Program::new(graph, slice.nodes, &values, &[count], joint.keys())?;
        let executor = Executor::new(&Device::flex())?.checking_indices(check_indices);
        Ok(CountProgram {
            program: executor.load(program),
            inputs,
        })
    })
}

/// A joint graph cut into the programs of every stage, shared by all ranks.
#[derive(Debug)]
pub(crate) struct CutProgram {
    /// Its number among the programs of the pipeline.
    pub(crate) number: u64,
    /// What was cut, which a replay names operations of. The trace keeps as many graphs.
    pub(crate) joint: Arc<JointGraph>,
    pub(crate) programs: CertifiedPrograms,
    /// What the loss of a micro-batch is a mean or a sum over.
    pub(crate) loss_over: LossOver<CountProgram>,
    /// What its programs hold beside parameters.
    pub(crate) bytes: CutBytes,
    /// The places of its operations that read by index.
    pub(crate) indices: IndexPlaces,
    /// The carried tensors of the batch.
    pub(crate) carried: CarriedTensors,
}
