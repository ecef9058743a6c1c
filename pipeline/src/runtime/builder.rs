//! How a pipeline is set up.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use burn::module::Module;
use burn::optim::Optimizer;
use burn::optim::grad_clipping::GradientClippingConfig;
use burn::tensor::{Device, FloatDType};
use tinderbox_deferred::{Deferred, MemoryCheck, Observer, Source, random::Seed};

use super::clip::Clipping;
use super::crew::Wrap;
use super::link::Link;
use super::lists::ScheduleChoice;
use super::local::LocalLink;
use super::loss_scale::LossScale;
use super::optimizer_config::OptimizerConfig;
use super::pipeline::Pipeline;
use super::settings::Settings;
use crate::batch::Batch;
use crate::schedule::RankIndex;
use crate::trace::{KEPT_PROGRAMS, Trace};
use crate::{PipelineError, Plan};

/// What a pipeline is made from, with defaults.
pub struct PipelineBuilder<M, B> {
    pub(super) model: Deferred<M>,
    pub(super) trace: Trace<B>,
    pub(super) plan: Plan,
    pub(super) settings: Settings,
    pub(super) schedule: Option<ScheduleChoice>,
    pub(super) micro_batches: Option<usize>,
    pub(super) loss_scale: Option<LossScale>,
    /// The clipping of the optimizer's configuration.
    pub(super) optimizer_clipping: Option<GradientClippingConfig>,
    pub(super) source: Option<Arc<dyn Source>>,
    pub(super) observer: Option<Arc<dyn Observer>>,
    pub(super) devices: Vec<Device>,
    pub(super) threads_per_rank: Option<usize>,
    pub(super) kept_programs: usize,
    pub(super) timeout: Duration,
    pub(super) links: Option<Box<Wrap>>,
}

impl<M: Module + Sync + 'static, B: Batch> PipelineBuilder<M, B> {
    pub(super) fn new(model: &Deferred<M>, trace: &Trace<B>, plan: &Plan) -> Self {
        Self {
            model: model.clone(),
            trace: trace.clone(),
            plan: plan.clone(),
            settings: Settings {
                seed: Seed::new(0),
                clipping: None,
                stop_on_non_finite: false,
                check_indices: cfg!(debug_assertions),
                measure: false,
                optimizer: None,
                memory: MemoryCheck::default(),
                keep_gradients: false,
            },
            schedule: None,
            micro_batches: None,
            loss_scale: default_scale(trace.compute_dtype()),
            optimizer_clipping: None,
            source: None,
            observer: None,
            devices: vec![Device::flex()],
            threads_per_rank: None,
            kept_programs: KEPT_PROGRAMS,
            timeout: Duration::from_secs(600),
            links: None,
        }
    }

    /// The optimizer of every rank, by its configuration, such as `AdamWConfig::new()`. None by default: the
    /// pipeline then evaluates only.
    ///
    /// Gradients are clipped as the configuration says (`with_grad_clipping`), each by itself; together with
    /// [`clip`](Self::clip) that is refused at the start.
    #[must_use]
    pub fn optimizer(mut self, config: impl OptimizerConfig) -> Self {
        self.settings.optimizer = Some(config.optimizer());
        self.optimizer_clipping = config.clipping();
        self
    }

    /// An optimizer of your own.
    ///
    /// What a configuration of Burn's has built may be given too, but has lost the clipping that the configuration asked
    /// for: Burn's `build` drops it. [`optimizer`](Self::optimizer) keeps it.
    #[must_use]
    pub fn custom_optimizer(mut self, optimizer: impl Optimizer) -> Self {
        self.settings.optimizer = Some(Arc::new(optimizer));
        self.optimizer_clipping = None;
        self
    }

    /// The seed of initial values and of dropout masks. 0 by default.
    #[must_use]
    pub fn seed(mut self, seed: impl Into<Seed>) -> Self {
        self.settings.seed = seed.into();
        self
    }

    /// The schedule of a training step: a [`ScheduleKind`](crate::schedule::ScheduleKind), or a
    /// [`Schedule`](crate::schedule::Schedule) of your own. The one that the plan was made for by default.
    ///
    /// The plan's stages must lie on the ranks as the schedule has them.
    #[must_use]
    pub fn schedule(mut self, schedule: impl Into<ScheduleChoice>) -> Self {
        self.schedule = Some(schedule.into());
        self
    }

    /// How many micro-batches a batch is split into, at least 1. By default those of the schedule, if it was
    /// written for a number, or else those that the plan was made for.
    #[must_use]
    pub fn micro_batches(mut self, count: usize) -> Self {
        self.micro_batches = Some(count);
        self
    }

    /// Clips gradients before each update. Not by default.
    #[must_use]
    pub fn clip(mut self, clipping: Clipping) -> Self {
        self.settings.clipping = Some(clipping);
        self
    }

    /// Scales the loss of a training step. [Dynamically](LossScale::dynamic) by default where the forward is
    /// [traced in f16](crate::MixedPrecision::f16), not at all elsewhere.
    #[must_use]
    pub fn loss_scale(mut self, scale: LossScale) -> Self {
        self.loss_scale = Some(scale);
        self
    }

    /// Ends a training step with [`PipelineError::NotFinite`] before any rank updates, where the loss or the norm of all
    /// gradients is NaN or infinite. The pipeline is then as it was before the step, and goes on with another batch.
    /// Not by default.
    ///
    /// Every rank waits for all others before its update, as for a clip by the norm of all gradients. Where the loss
    /// is [scaled](Self::loss_scale), the scale has the steps skipped whose gradients alone are not finite.
    #[must_use]
    pub fn stop_on_non_finite(mut self) -> Self {
        self.settings.stop_on_non_finite = true;
        self
    }

    /// Whether each gather, selection, embedding and scatter has its indices compared with what they index, the targets
    /// of a cross-entropy among them. An index out of range is then
    /// [`ActionError::IndexOutOfRange`](crate::ActionError::IndexOutOfRange), which names the module and the tensor of
    /// the batch, in place of a panic of Burn.
    ///
    /// Indices that are a whole tensor of the batch are compared before anything runs
    /// ([`PipelineError::MicroBatch`](crate::PipelineError::MicroBatch)), and the pipeline goes on with another batch.
    /// Others are compared where they are read, and the pipeline has stopped after an error.
    ///
    /// By default in builds with debug assertions. Costs two passes over the indices; on a GPU, each such operation waits
    /// for all that was queued before it.
    #[must_use]
    pub fn check_indices(mut self, check: bool) -> Self {
        self.settings.check_indices = check;
        self
    }

    /// Measures when each action runs, and what each rank holds:
    /// [`StepOutput::timeline`](crate::StepOutput::timeline). Costs two readings of the clock per
    /// action, and one pass over the gradients per program.
    #[must_use]
    pub fn measure(mut self) -> Self {
        self.settings.measure = true;
        self
    }

    /// Where initial values come from. The replay of the model's own initialization by default.
    #[must_use]
    pub fn source(mut self, source: impl Source + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Notifies an observer of how far the ranks are with their parameters; each rank begins and ends for itself.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// The device of every rank. The CPU by default.
    #[must_use]
    pub fn device(self, device: &Device) -> Self {
        self.devices(std::slice::from_ref(device))
    }

    /// The devices of the ranks, in their order; where there are more ranks than devices, they are dealt out in
    /// turn, so that several ranks share one. What one rank sends to another is copied between their devices.
    #[must_use]
    pub fn devices(mut self, devices: &[Device]) -> Self {
        self.devices = devices
            .iter()
            .map(|device| device.clone().without_autodiff())
            .collect();
        self
    }

    /// What the memory that ranks need is compared with before they make anything; by default what each device has
    /// free. [`MemoryCheck::Bytes`] is for each device, and for each stage when it is made. A restore
    /// compares one group of values, as many bytes as the largest parameter has, since it replaces values in place.
    #[must_use]
    pub fn memory(mut self, check: MemoryCheck) -> Self {
        self.settings.memory = check;
        self
    }

    /// CPU threads of each rank's own pool, at least 1. The machine's threads divided by the ranks by default,
    /// at least one.
    #[must_use]
    pub fn threads_per_rank(mut self, threads: usize) -> Self {
        self.threads_per_rank = Some(threads);
        self
    }

    /// Keeps the gradients of each step readable ([`Stage::gradients`](crate::Stage::gradients)), at
    /// the cost of as much memory again. They are freed at the update by default.
    #[must_use]
    pub fn keep_gradients(mut self) -> Self {
        self.settings.keep_gradients = true;
        self
    }

    /// How many programs are kept, one for each mode and shape of a micro-batch: the most recently used, and always
    /// those of one step. 16 by default.
    ///
    /// A batch of a shape that is not kept is recorded, cut and loaded first, as every new shape is. A kept program
    /// takes memory by the number of its operations (about a kilobyte each), and its constants on the devices. Programs
    /// are reported as `tracing` events at the debug level when they are made and dropped, with how many were so far.
    #[must_use]
    pub fn keep_programs(mut self, count: usize) -> Self {
        self.kept_programs = count;
        self
    }

    /// How long a rank waits for a message. Ten minutes by default. A step takes any time as long as some rank finishes an
    /// action; the driver ends it where none does for two to three times this time, so that a message that does not come is
    /// named by the rank that waits for it.
    ///
    /// What makes or reads parameters (the start, a [restore](Pipeline::restore)) takes any time as long as some rank
    /// reports progress: a parameter that is there, or bytes of one. Where no rank reports any from one look to the
    /// next, with this time between them, it ends with [`PipelineError::Stalled`]. A call by
    /// [`on_ranks`](Pipeline::on_ranks) has this time for all of it, unless it reports to
    /// [`Stage::observer`](crate::Stage::observer).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Puts a link of your own around each rank's link to the others: to count, to delay or to log
    /// messages. The links themselves by default.
    #[must_use]
    pub fn links(mut self, wrap: impl Fn(RankIndex, LocalLink) -> Box<dyn Link> + 'static) -> Self {
        self.links = Some(Box::new(wrap));
        self
    }

    /// Starts the ranks; each makes its own parameters and no others.
    ///
    /// Configures the C library to reuse freed memory, for the rest of the process
    /// ([`tinderbox_pages::keep_freed_blocks`]).
    ///
    /// # Errors
    ///
    /// When the number of micro-batches or of threads is 0; when there is no device, or one can't be used or has too little memory for the parameters and gradients of its
    /// ranks; when the plan is for another model, the schedule does not fit it, the model has clones of a parameter and an
    /// optimizer is given, or a rank can't make its parameters.
    pub fn start(self) -> Result<Pipeline<M, B>, PipelineError> {
        let pipeline = Pipeline::start(self)?;
        // After the parameters are allocated: the allocator would clear reused memory on one thread.
        tinderbox_pages::keep_freed_blocks();
        Ok(pipeline)
    }
}

/// f16 loses small gradients; bf16 has the range of f32.
fn default_scale(compute: Option<FloatDType>) -> Option<LossScale> {
    (compute == Some(FloatDType::F16)).then(LossScale::dynamic)
}

impl<M, B> fmt::Debug for PipelineBuilder<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineBuilder")
            .field("seed", &self.settings.seed)
            .field("schedule", &self.schedule)
            .field("micro_batches", &self.micro_batches)
            .field("stages", &self.plan.stages().len())
            .finish_non_exhaustive()
    }
}
