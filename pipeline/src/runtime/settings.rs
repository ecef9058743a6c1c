//! The settings that a pipeline and its ranks share.

use std::sync::Arc;

use burn::optim::DynOptimizer;
use tinderbox_deferred::{MemoryCheck, random::Seed};

use super::clip::Clipping;

/// Settings of the builder that the driver or the ranks use after the start.
pub(super) struct Settings {
    /// The seed of initial values and of the random values of the forward.
    pub(super) seed: Seed,
    pub(super) clipping: Option<Clipping>,
    /// Whether a training step updates nothing if the loss or a gradient is not finite.
    pub(super) stop_on_non_finite: bool,
    /// Whether indices are checked against the sizes of the dimensions that they index.
    pub(super) check_indices: bool,
    /// Whether rounds are measured.
    pub(super) measure: bool,
    /// The optimizer; without one, the pipeline can't train.
    pub(super) optimizer: Option<Arc<dyn DynOptimizer>>,
    /// The memory limit that ranks are checked against.
    pub(super) memory: MemoryCheck,
    /// Whether the gradients of the last step stay readable.
    pub(super) keep_gradients: bool,
}
