//! The settings that a driver and its ranks share, and the settings of the driver alone.

use std::sync::Arc;
use std::time::Duration;

use burn::optim::grad_clipping::GradientClippingConfig;
use burn::tensor::{Device, FloatDType};
use tinderbox_deferred::{MemoryCheck, ParameterPath, random::Seed};
use tinderbox_fake::DynTensor;

use super::clip::Clipping;
use super::loss_scale::LossScale;
use super::optimizer::Optimizers;
use crate::sum::GradientSum;

/// Changes the gradient of a parameter before the update.
pub(crate) type GradientHook = dyn Fn(&ParameterPath, DynTensor) -> DynTensor + Send + Sync;

/// Settings that the driver and the ranks use, the same for any plan.
#[derive(Clone, Default)]
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
    pub(crate) memory_check: MemoryCheck,
    /// Whether the gradients of the last step stay readable.
    pub(crate) keep_gradients: bool,
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

    /// The clipping of each gradient by itself.
    pub(crate) fn each(&self) -> Option<&GradientClippingConfig> {
        match &self.clipping {
            Some(Clipping::Each(config)) => Some(config),
            Some(Clipping::GlobalNorm(_)) | None => None,
        }
    }
}

/// Settings of the start and of calls, which the ranks do not need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// The devices of the ranks, which are assigned round-robin.
    pub(crate) devices: Vec<Device>,
    /// The number of threads that a rank computes with. Default: an equal part of the threads that this process may use.
    pub(crate) threads_per_rank: Option<usize>,
    /// The timeout of a message.
    pub(crate) timeout: Duration,
    /// The number of micro-batches of a batch that has enough samples.
    pub(crate) micro_batches: usize,
    /// The number of samples of the traced step, over all replicas; `None` if its batch has no samples.
    pub(crate) samples: Option<usize>,
    /// Whether batches with other shapes than in the traced step are refused.
    pub(crate) fixed_shapes: bool,
    /// The first loss scale.
    pub(crate) loss_scale: Option<LossScale>,
    /// The number of programs that are kept.
    pub(crate) kept_programs: usize,
    /// The 16-bit dtype of mixed precision.
    pub(crate) compute: Option<FloatDType>,
    /// Whether processes compare the values of batches.
    pub(crate) checks_batches: bool,
    /// The processes that get the named outputs.
    pub(crate) outputs: OutputsOn,
    /// The number of steps between checks for values that have changed in memory.
    pub(crate) detect_damage: Option<u64>,
}

/// The processes of a [world](crate::PipelineBuilder::world) that get the named outputs of a step. All processes get the
/// losses and the norm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputsOn {
    /// All processes: every output is sent to each of them.
    #[default]
    All,
    /// The process whose rank computes them, without a copy: with [replicas](crate::Plan::replicas), it gets the outputs of the
    /// micro-batches of its replica.
    Own,
}
