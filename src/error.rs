//! Errors of the facade.

use std::path::PathBuf;

use tinderbox_checkpoint::{LoadError, SaveError};
use tinderbox_deferred::{MaterializeError, SourceError};
use tinderbox_fake::FakeError;
use tinderbox_pipeline::schedule::RankIndex;
use tinderbox_pipeline::{BatchError, PipelineError, PlanError, RestoreError, TraceError};

/// Why a run could not be saved or resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointsError {
    /// The checkpoint could not be opened, begun or published.
    #[error("the checkpoint of step {step} could not be saved")]
    Save {
        /// The step.
        step: u64,
        /// The cause.
        source: Box<SaveError>,
    },
    /// The plan has no form in the checkpoint.
    #[error("the plan can't be saved with step {step}")]
    Plan {
        /// The step.
        step: u64,
        /// The cause.
        source: serde_json::Error,
    },
    /// The checkpoint was saved, and an earlier one could not be removed.
    #[error("step {step} was saved, but an earlier checkpoint could not be removed")]
    Prune {
        /// The step.
        step: u64,
        /// The cause.
        source: Box<SaveError>,
    },
    /// Leftovers of an earlier run could not be removed.
    #[error("the run directory {path} could not be opened")]
    Open {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: Box<SaveError>,
    },
    /// The checkpoint can't be used.
    #[error("the checkpoint could not be loaded")]
    Load(#[from] LoadError),
    /// The checkpoint does not fit what a rank holds.
    #[error("{path} does not fit rank {rank}, nothing was changed")]
    Fit {
        /// The rank.
        rank: RankIndex,
        /// The checkpoint.
        path: PathBuf,
        /// What does not fit.
        source: Box<RestoreError>,
    },
    /// A rank could not read its part. Others may have.
    #[error("rank {rank} could not read its part of {path}")]
    LoadRank {
        /// The rank.
        rank: RankIndex,
        /// The checkpoint.
        path: PathBuf,
        /// The cause.
        source: Box<RestoreError>,
    },
    /// A checkpoint could not be read to its end, and no other could be restored instead.
    #[error(
        "no checkpoint in {path} could be restored, and the pipeline holds a mixture of old and restored values: it \
         can't be used any more, start a new one"
    )]
    Mixed {
        /// The directory of the run.
        path: PathBuf,
        /// Why the last one that was tried could not be restored.
        source: Box<CheckpointsError>,
    },
    /// A module could not be made of the checkpoint.
    #[error("the checkpoint could not be loaded into a module")]
    Materialize {
        /// The cause.
        source: MaterializeError,
    },
    /// The pipeline runs with another seed than the checkpoint.
    #[error(
        "the checkpoint was saved with seed {expected}, the pipeline was started with {found}: start \
         it with `.seed({expected})`, or dropout would differ"
    )]
    Seed {
        /// The checkpoint's seed.
        expected: u64,
        /// The pipeline's seed.
        found: u64,
    },
    /// The pipeline's optimizer keeps a state, and the checkpoint has none.
    #[error(
        "checkpoint {} has no optimizer state, and the pipeline's optimizer keeps one: resume with the optimizer that \
         saved it, or begin anew with its parameters as the pipeline's source",
        path.display()
    )]
    NoOptimizerState {
        /// The checkpoint.
        path: PathBuf,
    },
    /// The pipeline failed.
    #[error("the pipeline failed")]
    Pipeline(#[from] PipelineError),
}

/// Why it can't be told what a load would read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DryRunError {
    /// The plan is for another model.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The load would fail.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// Why a model could not be compared with plain Burn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyModelError {
    /// The batch can't be split.
    #[error("the batch can't be used")]
    Batch(#[from] BatchError),
    /// The batch has no samples.
    #[error("the batch has no samples: give one with at least a sample per micro-batch")]
    EmptyBatch,
    /// The model could not be traced for the batch.
    #[error("the model could not be traced for this batch")]
    Trace(#[from] TraceError),
    /// The module of plain Burn could not be made.
    #[error("the module of plain Burn could not be made")]
    Materialize(#[from] MaterializeError),
    /// The forward gives no loss.
    #[error("the forward gave no loss: return `Outputs::loss(loss)`")]
    NoLoss,
    /// A value could not be read.
    #[error("a value could not be read")]
    Value(#[from] FakeError),
    /// The pipeline could not be started, or failed.
    #[error("the step in the pipeline failed")]
    Pipeline(#[from] PipelineError),
}
