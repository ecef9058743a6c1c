//! Errors of the comparison with plain Burn.

use tinderbox_deferred::MaterializeError;
use tinderbox_fake::FakeError;
use tinderbox_pipeline::{BatchError, PipelineError, TraceError};

/// The reason why a model could not be compared with plain Burn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// The pipeline has ranks in other processes.
    #[error(
        "the builder has a world, whose processes would each compare their own rank: leave out `world`, and compare in one \
         process"
    )]
    Processes,
    /// The batch can't be split.
    #[error("the batch can't be used")]
    Batch(#[from] BatchError),
    /// The model could not be traced for the batch.
    #[error("the model could not be traced for this batch")]
    Trace(#[from] TraceError),
    /// The module of plain Burn could not be created.
    #[error("the module of plain Burn could not be created")]
    Materialize(#[from] MaterializeError),
    /// The forward returns no loss.
    #[error("the forward returned no loss: return `Outputs::loss(loss)`")]
    NoLoss,
    /// A value could not be read.
    #[error("a value could not be read")]
    Value(#[from] FakeError),
    /// The pipeline could not be started, or failed.
    #[error("the step in the pipeline failed")]
    Pipeline(#[from] PipelineError),
}
