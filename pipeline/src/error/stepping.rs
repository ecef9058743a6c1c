//! Errors of steps and evaluations.

use tinderbox_deferred::{ParameterPath, ProgramError};
use tinderbox_fake::FakeError;

use super::ranks::ActionError;
use super::texts::{joined, not_finite, quoted};
use crate::schedule::{MicroBatchIndex, StageIndex};
use crate::{BatchError, CertifyError, TraceError};

/// Errors of a step or an evaluation: of the call, of its batch, or of the programs for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The pipeline has no optimizer.
    #[error("the pipeline has no optimizer: call `.optimizer(...)` before `.start()` to train")]
    NoOptimizer,
    /// A learning rate is negative, NaN or infinite. Nothing was run.
    #[error(
        "the learning rate{} is {rate}: it must be finite and not negative",
        path.as_ref().map(|path| format!(" of `{path}`")).unwrap_or_default()
    )]
    LearningRate {
        /// The rate.
        rate: f64,
        /// The first parameter with this rate; `None` for the rate of all parameters.
        path: Option<ParameterPath>,
    },
    /// The step does not fit the random generator's counter.
    #[error("step {step} does not fit the 32-bit step counter of the random generator")]
    StepOverflow {
        /// The step.
        step: u64,
    },
    /// A share of a batch was passed to a pipeline with recovery.
    #[error(
        "with recovery, the remaining replicas need other shares of a batch when a rank is lost: pass whole batches to \
        `step`"
    )]
    ShareRecovery,
    /// The batch can't be used.
    #[error("the batch can't be used")]
    Batch(#[from] BatchError),
    /// A batch has more samples than the batch with which the model was traced. Nothing was run.
    #[error(
        "a batch of {found} samples is too large for a step, which was planned for {planned}: trace the model with the largest \
         batch of a step"
    )]
    MoreSamples {
        /// The number of samples of the traced batch, of all replicas.
        planned: usize,
        /// The number of samples of the batch.
        found: usize,
    },
    /// A micro-batch has another shape than the micro-batches of the traced step, and the pipeline has
    /// [fixed shapes](crate::PipelineBuilder::fixed_shapes). Nothing was run.
    #[error(
        "a micro-batch needs the program `{found}`, which differs from the traced one, `{traced}`: pad the batch to the \
         traced shapes, leave it out, or start without `fixed_shapes`"
    )]
    Shape {
        /// The program of the largest micro-batch of the traced step: mode, shapes and dtypes.
        traced: String,
        /// The program of the micro-batch.
        found: String,
    },
    /// The model could not be traced for this batch.
    #[error("the model could not be traced for this batch")]
    Trace {
        /// The cause.
        #[from]
        source: TraceError,
    },
    /// A batch has an index that is out of range: nothing was run, and the pipeline can continue with another batch. Or the
    /// indices can't be read because their device failed: the pipeline has stopped.
    #[error("micro-batch {micro_batch} of the batch can't be used, and nothing was run")]
    MicroBatch {
        /// The micro-batch.
        micro_batch: MicroBatchIndex,
        /// The cause.
        source: Box<ActionError>,
    },
    /// The carried values can't be used with this batch. Nothing was run, and the carry is unchanged.
    #[error("the carried values can't be used, and nothing was run")]
    Carry(#[from] CarryError),
    /// The count of a micro-batch could not be computed.
    #[error("the count that weights the loss of micro-batch {micro_batch} could not be computed")]
    Count {
        /// The micro-batch.
        micro_batch: usize,
        /// The cause.
        source: Box<ActionError>,
    },
    /// A count is negative, NaN or infinite.
    #[error(
        "the count that weights the loss of micro-batch {micro_batch} is {count}: it must be finite and not negative"
    )]
    BadCount {
        /// The micro-batch.
        micro_batch: usize,
        /// The count.
        count: f64,
    },
    /// The counts of all micro-batches are 0.
    #[error(
        "the counts that weight the losses are 0 for all micro-batches, so the loss is undefined: leave the batch out"
    )]
    NothingCounts,
    /// Some micro-batches have means, and others have sums or means over other items.
    #[error(
        "the loss of micro-batch {micro_batch} is over other items than the loss of micro-batch 0: use the same one of \
         `Outputs::loss`, `weighted_by` and `Outputs::sum` for every batch"
    )]
    MixedLosses {
        /// The first micro-batch that differs.
        micro_batch: usize,
    },
    /// A program could not be built.
    #[error("a stage's program could not be built")]
    Program(#[from] ProgramError),
    /// The programs or the lists do not compute what was recorded.
    #[error(
        "the programs of the pipeline differ from the recorded model, and nothing was run: this is a defect of tinderbox, \
         report it with the plan file"
    )]
    Certify(#[from] CertifyError),
    /// The loss or gradients are NaN or infinite, and no rank has updated. The pipeline is unchanged.
    #[error("{}", not_finite(*step, losses, gradients))]
    NotFinite {
        /// The step.
        step: u64,
        /// The losses that are not finite, with their micro-batches.
        losses: Vec<(MicroBatchIndex, f64)>,
        /// The parameters whose gradients have a norm that is not finite, in the order of the table. The gradients are of the
        /// whole batch, and a norm whose squares overflow f32 is not finite.
        gradients: Vec<ParameterPath>,
    },
}

/// Errors of an evaluation with carried values. Nothing was run, and the carry is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CarryError {
    /// The batch has no carried tensor.
    #[error("the batch has no carried tensor: wrap a part of it in `Carried`, or use `evaluate`")]
    NothingCarried,
    /// The carry is of another pipeline.
    #[error("the carry is of another pipeline: its values are on the ranks of that one")]
    OtherPipeline,
    /// The batch has another number of micro-batches than the values.
    #[error(
        "the batch has {found} micro-batch(es), and the carry has values of {expected}: use as many samples as before, or \
         another carry"
    )]
    MicroBatches {
        /// The number of micro-batches that have values.
        expected: usize,
        /// The number of micro-batches of the batch.
        found: usize,
    },
    /// A carried tensor of the batch has another name or type than the value.
    #[error(
        "the carried tensors of micro-batch {micro_batch} differ from the values that the carry has: {expected} is kept, \
         and the batch has {found}; use the same shapes as before, or another carry"
    )]
    Tensor {
        /// The micro-batch.
        micro_batch: usize,
        /// Name, dtype and shape of the value.
        expected: String,
        /// Name, dtype and shape of the tensor of the batch.
        found: String,
    },
    /// A value is not on the stage that reads it.
    #[error(
        "the value of the carried tensor `{name}` is on {} {}, and for a batch of this shape stage {reader} reads it: cut the \
         model elsewhere, so that one stage does both",
        if holders.len() == 1 { "stage" } else { "the stages" },
        joined(holders)
    )]
    Apart {
        /// The name of the tensor.
        name: String,
        /// The stages that have its value.
        holders: Vec<StageIndex>,
        /// The stage that reads it.
        reader: StageIndex,
    },
}

/// Errors of reading a named output.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The forward has no output with this name.
    #[error("the forward has no output `{name}`; it has {}", listed(known))]
    Unknown {
        /// The name.
        name: String,
        /// The names of its outputs.
        known: Vec<String>,
    },
    /// The output has another rank or kind.
    #[error("the output `{name}` can't be read")]
    Type {
        /// The name.
        name: String,
        /// The cause.
        source: FakeError,
    },
    /// The output has different shapes in different micro-batches, beyond its first dimension.
    #[error(
        "the output `{name}` has shape {first:?} in micro-batch 0 and {other:?} in micro-batch {micro_batch}, which can't be \
         joined along the first dimension: read them one by one (`output`)"
    )]
    Shapes {
        /// The name.
        name: String,
        /// Its shape in the first micro-batch.
        first: Vec<usize>,
        /// Another micro-batch.
        micro_batch: usize,
        /// Its shape there.
        other: Vec<usize>,
    },
}

fn listed(names: &[String]) -> String {
    match names.is_empty() {
        true => "none: name them with `Outputs::with`".into(),
        false => quoted(names),
    }
}
