//! Errors of training loops.

#[cfg(feature = "signals")]
use std::io;
use std::path::PathBuf;

use tinderbox_pipeline::PipelineError;

use super::CheckpointsError;
#[cfg(feature = "signals")]
use crate::session::EndSignal;
use crate::session::{DataError, Position};

/// The reason why a session can't start, or has ended before its last step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// A number of steps or epochs is 0.
    #[error("`{setting}` of the session is 0: set at least 1")]
    Zero {
        /// The setting.
        setting: &'static str,
    },
    /// There is neither a number of steps nor of epochs.
    #[error("the session has no end: set `steps` or `epochs`")]
    NoEnd,
    /// There is no learning rate.
    #[error("the session has no learning rate: set `learning_rate` or `scheduler`")]
    NoLearningRate,
    /// A step or an evaluation failed.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// The run can't be saved or resumed.
    #[error(transparent)]
    Checkpoints(#[from] CheckpointsError),
    /// A training batch can't be loaded.
    #[error("the training data has no batch at {position}")]
    Data {
        /// The position.
        position: Position,
        /// The cause.
        source: DataError,
    },
    /// An epoch has no batch.
    #[error(
        "the training data has no batch at the beginning of epoch {epoch}: return at least one batch for each epoch, or set \
         fewer `epochs` or `steps`"
    )]
    EmptyEpoch {
        /// The epoch, counted from 0.
        epoch: u64,
    },
    /// A batch of an evaluation can't be loaded.
    #[error("a batch of the evaluation can't be loaded")]
    ValidationData {
        /// The cause.
        source: DataError,
    },
    /// An evaluation has no batch.
    #[error("the evaluation has no batch: return at least one")]
    NoValidation,
    /// The forward returns no loss for a batch of an evaluation.
    #[error(
        "the forward returns no loss for a batch of the evaluation: give the batch what the loss needs, such as its targets"
    )]
    NoLoss,
    /// The checkpoint was saved by another training loop.
    #[error(
        "{path} was saved by another training loop, and its position in the data may be in another unit: continue with that \
         loop, or save to another directory"
    )]
    OtherLoop {
        /// The checkpoint.
        path: PathBuf,
    },
    /// The state of lost processes is lost, and there is no checkpoint to go back to.
    #[error("the state of lost processes is lost, and nothing was saved yet: start the run again")]
    NothingSaved {
        /// The error of the call in which the processes were lost.
        source: Box<SessionError>,
    },
    /// Signals can't be received.
    #[cfg(feature = "signals")]
    #[cfg_attr(docsrs, doc(cfg(feature = "signals")))]
    #[error(transparent)]
    Signals(#[from] SignalError),
}

/// The reason why a signal can't end a training.
#[cfg(feature = "signals")]
#[cfg_attr(docsrs, doc(cfg(feature = "signals")))]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignalError {
    /// The name is not the name of a signal after which a training can end.
    #[error(
        "`{name}` is no signal that a program can end after: expected one of {}",
        known.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Unknown {
        /// The name.
        name: String,
        /// The signals of this system.
        known: Vec<EndSignal>,
    },
    /// The operating system refuses to report the signal.
    #[error("{signal} can't be received")]
    Listen {
        /// The signal.
        signal: EndSignal,
        /// The reason.
        source: io::Error,
    },
}
