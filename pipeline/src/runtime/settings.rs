//! The settings that a driver and its ranks share.

use std::sync::Arc;

use burn::optim::grad_clipping::GradientClippingConfig;
use tinderbox_deferred::{MemoryCheck, ParameterPath, random::Seed};
use tinderbox_fake::DynTensor;

use super::clip::Clipping;
use super::optimizer::Optimizers;
use crate::sum::GradientSum;

/// Changes the gradient of a parameter before the update.
pub(crate) type GradientHook = dyn Fn(&ParameterPath, DynTensor) -> DynTensor + Send + Sync;

/// Settings that the driver and the ranks use, the same for any plan.
#[derive(Clone)]
pub(crate) struct Settings {
    /// The seed of initial values and of the random values of the forward.
    pub(crate) seed: Seed,
    /// The order in which gradients are added.
    pub(crate) sum: GradientSum,
    /// The clipping of all gradients.
    pub(crate) clipping: Option<Clipping>,
    /// Whether a training step updates nothing if the loss or a gradient is not finite.
    pub(crate) stop_on_non_finite: bool,
    /// Whether indices are checked against the sizes of the dimensions that they index.
    pub(crate) check_indices: bool,
    /// Whether rounds are measured.
    pub(crate) measure: bool,
    /// The optimizers; without them, the pipeline can't train.
    pub(crate) optimizers: Option<Optimizers>,
    pub(crate) gradient_hook: Option<Arc<GradientHook>>,
    /// The decay of the averages of parameters, which the optimizers keep.
    pub(crate) average_decay: Option<f64>,
    /// The memory limit that ranks are checked against.
    pub(crate) memory: MemoryCheck,
    /// Whether the gradients of the last step stay readable.
    pub(crate) keep_gradients: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: Seed::new(0),
            sum: GradientSum::Sequential,
            clipping: None,
            stop_on_non_finite: false,
            check_indices: false,
            measure: false,
            optimizers: None,
            gradient_hook: None,
            average_decay: None,
            memory: MemoryCheck::default(),
            keep_gradients: false,
        }
    }
}

impl Settings {
    /// Whether an update needs the norms of the gradients of all stages.
    pub(crate) fn needs_norms(&self, loss_scale: Option<f64>) -> bool {
        self.max_norm().is_some() || loss_scale.is_some() || self.stop_on_non_finite
    }

    /// The maximum norm of all gradients.
    pub(crate) fn max_norm(&self) -> Option<f64> {
        match self.clipping {
            Some(Clipping::GlobalNorm(max)) => Some(max),
            Some(Clipping::Each(_)) | None => None,
        }
    }

    /// How each gradient is clipped by itself.
    pub(crate) fn each(&self) -> Option<&GradientClippingConfig> {
        match &self.clipping {
            Some(Clipping::Each(config)) => Some(config),
            Some(Clipping::GlobalNorm(_)) | None => None,
        }
    }
}
