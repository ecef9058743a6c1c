//! The program that computes the count of a micro-batch, which decides its weight in the loss.

use burn::tensor::Device;
use tinderbox_deferred::{Executable, Executor, Program, ProgramError, RunContext};
use tinderbox_fake::DynTensor;

use super::bytes::CutBytes;
use super::carried::CarriedTensors;
use super::indices::IndexPlaces;
use crate::certify::CertifiedPrograms;
use crate::runtime::caught::caught;
use crate::{ActionResult, JointGraph, LossOver};

/// Computes the count of a micro-batch on the CPU.
#[derive(Debug)]
pub(crate) struct CountProgram {
    program: Executable,
    /// The positions in the batch of the tensors that it reads.
    inputs: Vec<usize>,
}

impl CountProgram {
    pub(crate) fn of(&self, batch: &[DynTensor], context: &RunContext) -> ActionResult<f64> {
        let inputs = self.inputs.iter();
        let inputs = inputs.map(|at| batch[*at].clone().to_device(&Device::flex()));
        let inputs = inputs.collect::<Result<_, _>>()?;
        // Where indices are not checked, Burn panics on one that is out of range.
        let made = caught(|| Ok(self.program.run(inputs, context)?))?;
        let data = made[0].to_data()?;
        Ok(data.iter::<f64>().next().unwrap_or(f64::NAN))
    }
}

/// Returns the items over which the loss of a program is a mean or a sum, with the program of their count.
pub(crate) fn count_of(
    joint: &JointGraph,
    check_indices: bool,
) -> Result<LossOver<CountProgram>, ProgramError> {
    let graph = joint.graph();
    joint.loss_over().try_map(|count| {
        let slice = graph.backward_slice([count], |value| joint.input_of(value).is_some());
        let leaves = slice.leaves.iter();
        let inputs: Vec<usize> = leaves.filter_map(|value| joint.input_of(*value)).collect();
        let values: Vec<_> = inputs.iter().map(|at| joint.inputs()[*at].value).collect();
        let program = Program::new(graph, slice.nodes, &values, &[count], joint.keys())?;
        let executor = Executor::new(&Device::flex())?.checking_indices(check_indices);
        let program = executor.load(program);
        Ok(CountProgram { program, inputs })
    })
}

/// A joint graph cut into the programs of every stage, shared by all ranks.
#[derive(Debug)]
pub(crate) struct CutProgram {
    /// Its number among the programs of the pipeline.
    pub(crate) number: u64,
    pub(crate) programs: CertifiedPrograms,
    /// The items over which the loss of a micro-batch is a mean or a sum.
    pub(crate) loss_over: LossOver<CountProgram>,
    /// The bytes that its programs hold beside parameters.
    pub(crate) bytes: CutBytes,
    /// The places of its operations that read by index.
    pub(crate) indices: IndexPlaces,
    /// The carried tensors of the batch.
    pub(crate) carried: CarriedTensors,
}
