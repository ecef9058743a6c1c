//! The weight of each micro-batch in the loss of its step.

use burn::tensor::Device;
use tinderbox_deferred::{Executable, Executor, Program, ProgramError, RunContext};
use tinderbox_fake::DynTensor;

use super::rank::caught;
use super::round::MicroInput;
use crate::trace::{Given, JointGraph, LossOver};
use crate::{ActionError, PipelineError};

/// Computes the count of a micro-batch on the CPU.
#[derive(Debug)]
pub(super) struct CountProgram {
    program: Executable,
    /// The positions in the batch of the tensors that it reads.
    inputs: Vec<usize>,
}

impl CountProgram {
    fn new(
        joint: &JointGraph,
        count: tinderbox_fake::ValueId,
        check_indices: bool,
    ) -> Result<Self, ProgramError> {
        let graph = joint.graph();
        let position = |value| match joint.given(value)? {
            Given::Input(position) => Some(position),
            _ => None,
        };
        let slice = graph.backward_slice([count], |value| position(value).is_some());
        let read = slice.leaves.iter().filter_map(|value| position(*value));
        let inputs: Vec<usize> = read.collect();
        let values: Vec<_> = inputs.iter().map(|at| joint.inputs()[*at].value).collect();
        let program = Program::new(graph, slice.nodes, &values, &[count], joint.keys())?;
        Ok(Self {
            program: Executor::new(&Device::flex())?
                .checking_indices(check_indices)
                .load(program),
            inputs,
        })
    }

    fn of(&self, batch: &[DynTensor], context: &RunContext) -> Result<f64, ActionError> {
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
pub(super) fn count_of(
    joint: &JointGraph,
    check_indices: bool,
) -> Result<LossOver<CountProgram>, ProgramError> {
    let new = |count| CountProgram::new(joint, count, check_indices);
    joint.loss_over().try_map(new)
}

/// The samples of each micro-batch, or what it counts; `None` for sums. `first` is the index of the first of them.
pub(super) fn counts(
    parts: &[MicroInput],
    first: usize,
    context: impl Fn(usize) -> RunContext,
) -> Result<Vec<Option<f64>>, PipelineError> {
    let counts = parts.iter().enumerate().map(|(index, part)| {
        Ok(match &part.cut.loss_over {
            LossOver::Sum => None,
            LossOver::Samples => Some(part.samples as f64),
            LossOver::Count(count) => {
                let index = first + index;
                let count = count.of(&part.inputs, &context(index));
                let count = count.map_err(|source| PipelineError::Count {
                    micro_batch: index,
                    source: Box::new(source),
                })?;
                if !(count >= 0.0 && count.is_finite()) {
                    return Err(PipelineError::BadCount {
                        micro_batch: index,
                        count,
                    });
                }
                Some(count)
            }
        })
    });
    let counts = counts.collect::<Result<Vec<Option<f64>>, PipelineError>>()?;
    let kind = |part: &MicroInput| std::mem::discriminant(&part.cut.loss_over);
    if let Some(other) = parts.iter().position(|part| kind(part) != kind(&parts[0])) {
        let micro_batch = first + other;
        return Err(PipelineError::MixedLosses { micro_batch });
    }
    Ok(counts)
}

/// The weight of each micro-batch of a batch: 1 for a sum, otherwise its fraction of the samples or of the count.
pub(super) fn weights(counts: Vec<Option<f64>>) -> Result<Vec<f64>, PipelineError> {
    let total: f64 = counts.iter().flatten().sum();
    if total == 0.0 && counts.iter().any(Option::is_some) {
        return Err(PipelineError::NothingCounts);
    }
    let weight = |count: Option<f64>| count.map_or(1.0, |count| count / total);
    Ok(counts.into_iter().map(weight).collect())
}
