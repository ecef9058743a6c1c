//! Errors of the facade.

use std::path::PathBuf;

use tinderbox_checkpoint::{LoadError, SaveError};
use tinderbox_deferred::MaterializeError;
use tinderbox_pipeline::schedule::RankIndex;
use tinderbox_pipeline::{PipelineError, RestoreError};

/// Why a run could not be saved or resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointsError {
    /// The checkpoint could not be opened, begun or published.
    #[error("the checkpoint of step {step} could not be saved")]
    Save {
        /// The step.
        step: u64,
        /// What went wrong.
        #[source]
        source: Box<SaveError>,
    },
    /// The plan has no form in the checkpoint.
    #[error("the plan can't be saved with step {step}")]
    Plan {
        /// The step.
        step: u64,
        /// What went wrong.
        #[source]
        source: serde_json::Error,
    },
    /// The checkpoint was saved, and an earlier one could not be removed.
    #[error("step {step} was saved, but an earlier checkpoint could not be removed")]
    Prune {
        /// The step.
        step: u64,
        /// What went wrong.
        #[source]
        source: Box<SaveError>,
    },
    /// Leftovers of an earlier run could not be removed.
    #[error("the run directory {path} could not be opened")]
    Open {
        /// The directory.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: Box<SaveError>,
    },
    /// The checkpoint can't be used.
    #[error("the checkpoint could not be loaded, nothing was changed")]
    Load {
        /// What is wrong with it.
        #[from]
        source: LoadError,
    },
    /// A rank could not load its part.
    #[error("rank {rank} could not load its part of {path}, nothing was changed")]
    LoadRank {
        /// The rank.
        rank: RankIndex,
        /// The checkpoint.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: Box<LoadRankError>,
    },
    /// A module could not be made of the checkpoint.
    #[error("the checkpoint could not be loaded into a module")]
    Materialize {
        /// What went wrong.
        #[source]
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
    /// The pipeline failed.
    #[error("the pipeline failed")]
    Pipeline {
        /// What went wrong.
        #[from]
        source: PipelineError,
    },
}

/// Why one rank could not load.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadRankError {
    /// The optimizer's state could not be read.
    #[error(transparent)]
    Read(#[from] LoadError),
    /// A value does not fit.
    #[error(transparent)]
    Restore(#[from] RestoreError),
}
