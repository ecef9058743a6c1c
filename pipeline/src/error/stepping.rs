//! Errors of steps and evaluations.

use tinderbox_deferred::{ParameterPath, ProgramError};

use super::acting::ActionError;
use super::carrying::CarryError;
use super::texts::not_finite;
use crate::CertifyError;
use crate::schedule::MicroBatchIndex;
use crate::{BatchError, TraceError};

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
    /// Shares of a batch with recovery.
    #[error(
        "with recovery, the replicas that are left need other shares of a batch when a rank is lost: pass whole batches to \
        `step`"
    )]
    ShareRecovery,
    /// The batch can't be used.
    #[error("the batch can't be used")]
    Batch(#[from] BatchError),
    /// The model could not be traced for this batch.
    #[error("the model could not be traced for this batch")]
    Trace {
        /// The cause.
        #[from]
        source: TraceError,
    },
    /// A batch has an index that is out of range: nothing was run, and the pipeline can continue with
    /// another batch. Or its indices can't be read because their device failed: the pipeline has
    /// stopped.
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
        "the count that weights the loss of micro-batch {micro_batch} is {count}: it must be finite and not \
         negative"
    )]
    BadCount {
        /// The micro-batch.
        micro_batch: usize,
        /// The count.
        count: f64,
    },
    /// The counts of all micro-batches are 0.
    #[error(
        "the counts that weight the losses are 0 for all micro-batches, so the loss is undefined: leave \
         the batch out"
    )]
    NothingCounts,
    /// Some micro-batches have means and others have sums or means over something else.
    #[error(
        "the loss of micro-batch {micro_batch} is over something else than the loss of micro-batch 0: use the same one of \
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
        /// The parameters whose gradients have a norm that is not finite, in the order of the table.
        gradients: Vec<ParameterPath>,
    },
}
