//! What can go wrong while a saved state is restored.

use tinderbox_deferred::{MaterializeError, ParameterPath};

/// Why a stage's state could not be restored.
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
        /// What went wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The saved state is of another optimizer, or incomplete.
    #[error(
        "the optimizer state of `{path}` is incomplete or of another optimizer: saved are {found:?}"
    )]
    OptimizerState {
        /// The parameter.
        path: ParameterPath,
        /// Names of what was saved for it.
        found: Vec<String>,
    },
    /// Burn would round the state.
    #[error(
        "the optimizer state `{tensor}` was saved as {saved}, and Burn reads states of optimizers in the default float \
         of the device, {read}: configure the device for {saved} before its first use (`Device::configure`)"
    )]
    StateDType {
        /// Name of the tensor.
        tensor: String,
        /// In which dtype it was saved.
        saved: &'static str,
        /// In which dtype Burn reads it on the device.
        read: &'static str,
    },
}
