//! Errors of restoring a saved state.

use tinderbox_deferred::{MaterializeError, ParameterPath};

/// The error of restoring a stage's state.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The parameters could not be loaded.
    #[error(transparent)]
    Parameters(#[from] MaterializeError),
    /// The state of the optimizer could not be read.
    #[error("the optimizer state of `{path}` could not be read")]
    ReadState {
        /// The parameter.
        path: ParameterPath,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The saved state is incomplete or of another optimizer.
    #[error(
        "the optimizer state of `{path}` is incomplete or of another optimizer: the saved fields are {found:?}"
    )]
    OptimizerState {
        /// The parameter.
        path: ParameterPath,
        /// The names of the fields that were saved for it.
        found: Vec<String>,
    },
    /// A saved tensor has not the shape of its parameter, though the optimizer keeps one value for each element.
    #[error(
        "the optimizer state `{tensor}` was saved with shape {saved:?}, but the parameter has shape {parameter:?}; if it is \
         the part of one replica, join the parts of all first, or read the state from a checkpoint"
    )]
    StateShape {
        /// The name of the tensor.
        tensor: String,
        /// The shape that was saved.
        saved: Vec<u64>,
        /// The shape of the parameter.
        parameter: Vec<u64>,
    },
    /// The dtype of a saved tensor differs from that in which Burn reads it.
    #[error(
        "the optimizer state `{tensor}` was saved as {saved}, but Burn reads states of optimizers in the default float \
         of the device, {read}: configure the device for {saved} before its first use (`Device::configure`)"
    )]
    StateDType {
        /// The name of the tensor.
        tensor: String,
        /// The dtype in which it was saved.
        saved: &'static str,
        /// The dtype in which Burn reads it on the device.
        read: &'static str,
    },
}
