//! Errors.

use std::path::PathBuf;

use burn::data::dataset::DatasetError;
use tinderbox::error::{CheckpointsError, OutputError, PipelineError};

/// The reason why epochs can't be continued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EpochsError {
    /// An epoch has begun.
    #[error("an epoch has begun: skip before the first one begins")]
    Begun,
    /// There are no items.
    #[error("position {position} does not exist: the data loader has too few items")]
    NoItems {
        /// The position.
        position: u64,
    },
    /// No batch ends at the position.
    #[error(
        "no batch ends at position {position}: the data loader must have the batch size and the number of items of the \
         run that is resumed"
    )]
    BetweenBatches {
        /// The position.
        position: u64,
    },
    /// A batch that is skipped can't be loaded.
    #[error("a batch that is skipped can't be loaded")]
    Dataset(#[from] DatasetError),
}

/// The reason why a strategy has stopped a training.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StrategyError {
    /// A step or an evaluation has failed.
    #[error("a step or an evaluation has failed")]
    Pipeline(#[from] PipelineError),
    /// The outputs of a step do not fit the item.
    #[error("the outputs of the forward do not fit the item of the metrics")]
    Output(#[from] OutputError),
    /// The run can't be saved or resumed.
    #[error("the run can't be saved or resumed")]
    Checkpoints(#[from] CheckpointsError),
    /// The data loader can't continue where the run has stopped.
    #[error("the data loader can't continue where the run has stopped")]
    Epochs(#[from] EpochsError),
    /// A batch can't be loaded.
    #[error("a batch can't be loaded")]
    Dataset(#[from] DatasetError),
    /// The data loader has another number of items than the data loader of the resumed run.
    #[error(
        "the data loader has {found} items, and the data loader of the resumed run had {saved}: an epoch would not continue \
         where it was interrupted"
    )]
    Items {
        /// The number of items of the run.
        saved: u64,
        /// The number of items now.
        found: u64,
    },
    /// The checkpoint is of a run that was not trained by a strategy.
    #[error(
        "{path} was saved by another training loop, and its position in the data may be in another unit: continue with that \
         loop, or save to another directory"
    )]
    OtherLoop {
        /// The checkpoint.
        path: PathBuf,
    },
    /// The training has checkpoints of burn-train.
    #[error(
        "checkpointers of burn-train save a whole model, but each rank has a part of it: leave out \
         `with_default_checkpointers` and `checkpoint`, and set `checkpoints` of the strategy"
    )]
    WholeModel,
}
