//! How a pipeline is set up.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use burn::module::Module;
use burn::optim::{DynOptimizer, Optimizer};
use burn::tensor::{Device, FloatDType};
use tinderbox_deferred::{Deferred, MemoryCheck, Observer, Source, random::Seed};

use super::clip::Clipping;
use super::crew::Wrap;
use super::link::Link;
use super::lists::ScheduleChoice;
use super::local::LocalLink;
use super::loss_scale::LossScale;
use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::schedule::RankIndex;
use crate::trace::Trace;
use crate::{PipelineError, Plan};

/// Settings of a pipeline, with defaults.
pub struct PipelineBuilder<M, B> {
    pub(super) model: Deferred<M>,
    pub(super) trace: Trace<B>,
    pub(super) plan: Plan,
    pub(super) seed: Seed,
    pub(super) schedule: Option<ScheduleChoice>,
    pub(super) micro_batches: Option<usize>,
    pub(super) clipping: Option<Clipping>,
    pub(super) loss_scale: Option<LossScale>,
    pub(super) measure: bool,
    pub(super) optimizer: Option<Arc<dyn DynOptimizer>>,
    pub(super) source: Option<Arc<dyn Source>>,
    pub(super) observer: Option<Arc<dyn Observer>>,
    pub(super) devices: Vec<Device>,
    pub(super) memory: MemoryCheck,
    pub(super) threads_per_rank: Option<usize>,
    pub(super) keep_gradients: bool,
    pub(super) timeout: Duration,
    pub(super) links: Option<Box<Wrap>>,
}

impl<M: Module + Sync + 'static, B: Batch> PipelineBuilder<M, B> {
    pub(super) fn new(model: &Deferred<M>, trace: &Trace<B>, plan: &Plan) -> Self {
        Self {
            model: model.clone(),
            trace: trace.clone(),
            plan: plan.clone(),
            seed: Seed::new(0),
            schedule: None,
            micro_batches: None,
            clipping: None,
            loss_scale: default_scale(trace.compute_dtype()),
            measure: false,
            optimizer: None,
            source: None,
            observer: None,
            devices: vec![Device::flex()],
            memory: MemoryCheck::default(),
            threads_per_rank: None,
            keep_gradients: false,
            timeout: Duration::from_secs(600),
            links: None,
        }
    }

    /// The optimizer of every rank, such as `AdamWConfig::new().build()`. None by default: the
    /// pipeline then evaluates only.
    #[must_use]
    pub fn optimizer(mut self, optimizer: impl Optimizer) -> Self {
        self.optimizer = Some(Arc::new(optimizer));
        self
    }

    /// The seed of initial values and of dropout masks. 0 by default.
    #[must_use]
    pub fn seed(mut self, seed: impl Into<Seed>) -> Self {
        self.seed = seed.into();
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

    /// How many micro-batches a batch is split into. By default those of the schedule, if it was
    /// written for a number, or else those that the plan was made for.
    #[must_use]
    pub fn micro_batches(mut self, count: usize) -> Self {
        self.micro_batches = Some(count.max(1));
        self
    }

    /// Clips gradients before each update. Not by default.
    #[must_use]
    pub fn clip(mut self, clipping: Clipping) -> Self {
        self.clipping = Some(clipping);
        self
    }

    /// Scales the loss of a training step. [Dynamically](LossScale::dynamic) by default where the forward is
    /// [traced in f16](crate::MixedPrecision::f16), not at all elsewhere.
    #[must_use]
    pub fn loss_scale(mut self, scale: LossScale) -> Self {
        self.loss_scale = Some(scale);
        self
    }

    /// Measures when each action runs, and what each rank holds:
    /// [`StepOutput::timeline`](crate::StepOutput::timeline). Costs two readings of the clock per
    /// action, and one pass over the gradients per program.
    #[must_use]
    pub fn measure(mut self) -> Self {
        self.measure = true;
        self
    }

    /// Where initial values come from. The replay of the model's own initialization by default.
    #[must_use]
    pub fn source(mut self, source: impl Source + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Hears how far the ranks are with their parameters; each rank begins and ends for itself.
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
    /// free. [`MemoryCheck::Bytes`] is for each device, and for each stage when it is made or restored.
    #[must_use]
    pub fn memory(mut self, check: MemoryCheck) -> Self {
        self.memory = check;
        self
    }

    /// CPU threads of each rank's own pool. The machine's threads divided by the ranks by default,
    /// at least one.
    #[must_use]
    pub fn threads_per_rank(mut self, threads: usize) -> Self {
        self.threads_per_rank = Some(threads.max(1));
        self
    }

    /// Keeps the gradients of each step readable ([`Stage::gradients`](crate::Stage::gradients)), at
    /// the cost of as much memory again. They are freed at the update by default.
    #[must_use]
    pub fn keep_gradients(mut self) -> Self {
        self.keep_gradients = true;
        self
    }

    /// How long a rank waits for a message, and the driver for the parameters and for calls. Ten
    /// minutes by default. The driver waits twice as long for a whole step, so that a message that
    /// does not come is named by the rank that waits for it.
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
    /// # Errors
    ///
    /// When there is no device, or one can't be used or has too little memory for the parameters and gradients of its
    /// ranks; when the plan is for another model, the schedule does not fit it, the model has clones of a parameter and an
    /// optimizer is given, or a rank can't make its parameters.
    pub fn start(self) -> Result<Pipeline<M, B>, PipelineError> {
        Pipeline::start(self)
    }
}

/// f16 loses small gradients; bf16 has the range of f32.
fn default_scale(compute: Option<FloatDType>) -> Option<LossScale> {
    (compute == Some(FloatDType::F16)).then(LossScale::dynamic)
}

impl<M, B> fmt::Debug for PipelineBuilder<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineBuilder")
            .field("seed", &self.seed)
            .field("schedule", &self.schedule)
            .field("micro_batches", &self.micro_batches)
            .field("stages", &self.plan.stages().len())
            .finish_non_exhaustive()
    }
}
