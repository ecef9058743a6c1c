//! The settings of a pipeline.

use std::sync::Arc;
use std::time::Duration;

use burn::module::{Module, ParamGroup};
use burn::optim::{Optimizer, SgdConfig};
use burn::tensor::{Device, FloatDType};
use tinderbox_deferred::{
    Deferred, MemoryCheck, Observed, Observer, ParameterPath, Source, random::Seed,
};
use tinderbox_fake::DynTensor;
use tinderbox_world::World;

use super::pipeline::Pipeline;
use crate::runtime::optimizer::{Optimizers, Rule};
use crate::runtime::ranks::Wrap;
use crate::runtime::settings::{Options, Settings};
use crate::schedule::RankIndex;
use crate::trace::KEPT_PROGRAMS;
use crate::{
    Batch, Clipping, GradientSum, Link, LocalLink, LossScale, OptimizerConfig, OutputsOn, Plan,
    Recovery, ScheduleChoice, Trace,
};

/// The kind of a [`PipelineBuilder`] whose ranks hold their parameters, with the settings that only this kind has.
#[derive(Default, derive_more::Debug)]
#[debug("Resident {{ world: {world:?}, recovery: {recovery:?}, .. }}")]
pub struct Resident {
    /// None without a world, and for a world of one process.
    pub(super) world: Option<World>,
    /// Wraps links, without a world.
    pub(super) links: Option<Box<Wrap>>,
    pub(super) recovery: Option<Recovery>,
}

/// Builds a [`Pipeline`], or with the kind [`OnDemand`](crate::OnDemand) a [`Streamed`](crate::Streamed) model; all settings have
/// defaults.
#[derive(derive_more::Debug)]
#[debug(
    "PipelineBuilder {{ seed: {:?}, schedule: {schedule}, stages: {}, .. }}",
    settings.seed, plan.stages.len()
)]
#[must_use]
pub struct PipelineBuilder<M, B, K = Resident> {
    pub(super) model: Deferred<M>,
    pub(super) trace: Trace<B>,
    pub(super) plan: Plan,
    pub(super) kind: K,
    pub(super) settings: Settings,
    pub(super) options: Options,
    pub(super) schedule: ScheduleChoice,
    pub(super) optimizer: Option<Rule>,
    pub(super) groups: Vec<(ParamGroup, Rule)>,
    /// Where initial values come from; none for the model's own initialization.
    pub(super) source: Option<Arc<dyn Source>>,
    observer: Option<Arc<dyn Observer>>,
}

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Returns a builder of a pipeline for a model and a plan.
    pub fn builder(model: &Deferred<M>, trace: &Trace<B>, plan: &Plan) -> PipelineBuilder<M, B> {
        PipelineBuilder::of_kind(model, trace, plan)
    }
}

impl<M: Module + Sync + 'static, B: Batch, K> PipelineBuilder<M, B, K> {
    pub(super) fn of_kind(model: &Deferred<M>, trace: &Trace<B>, plan: &Plan) -> Self
    where
        K: Default,
    {
        Self {
            model: model.clone(),
            trace: trace.clone(),
            plan: plan.clone(),
            kind: K::default(),
            settings: Settings {
                sum: GradientSum::of_replicas(plan.replicas()),
                check_indices: cfg!(debug_assertions),
                ..Settings::default()
            },
            options: Options {
                devices: vec![Device::flex()],
                timeout: Duration::from_secs(600),
                compute: trace.compute_dtype(),
                // f16 loses small gradients; bf16 has the range of f32.
                loss_scale: (trace.compute_dtype() == Some(FloatDType::F16))
                    .then(LossScale::dynamic),
                kept_programs: KEPT_PROGRAMS,
                ..Options::default()
            },
            schedule: ScheduleChoice::of(plan),
            optimizer: None,
            groups: Vec::new(),
            source: None,
            observer: None,
        }
    }

    /// Sets the optimizer of every rank by its configuration, such as `AdamWConfig::new()`. Default:
    /// none, for a pipeline that only evaluates.
    ///
    /// Each gradient is clipped as configured by `with_grad_clipping`; in combination with
    /// [`clip`](Self::clip), the start fails.
    pub fn optimizer(mut self, config: impl OptimizerConfig) -> Self {
        self.optimizer = Some(Rule::of(&config));
        self
    }

    /// Sets the optimizer of the parameters of a group, such as one without weight decay for biases and norms; of
    /// several groups that contain a parameter, the last counts. Others have the [optimizer](Self::optimizer) of all.
    ///
    /// A group matches paths; for another property of parameters, see
    /// [`ParameterTable::group`](tinderbox_deferred::ParameterTable::group). A group that contains no parameter that
    /// trains fails the start.
    ///
    /// ```
    /// # use burn::nn::Linear;
    /// # use burn::optim::AdamWConfig;
    /// # use burn::tensor::Tensor;
    /// # use tinderbox_pipeline::PipelineBuilder;
    /// # fn example(builder: PipelineBuilder<Linear, Tensor<2>>, model: &tinderbox_deferred::Deferred<Linear>) {
    /// let adamw = AdamWConfig::new().with_weight_decay(0.1);
    /// let builder = builder.optimizer(adamw.clone()).optimizer_group(
    ///     model.parameters().group(|parameter| parameter.shape.len() < 2),
    ///     adamw.with_weight_decay(0.0),
    /// );
    /// # }
    /// ```
    pub fn optimizer_group(mut self, group: ParamGroup, config: impl OptimizerConfig) -> Self {
        self.groups.push((group, Rule::of(&config)));
        self
    }

    /// Sets a custom optimizer.
    ///
    /// This accepts an optimizer that a configuration of Burn has built, but Burn's `build` drops the
    /// configured clipping. Use [`optimizer`](Self::optimizer) to keep it. [Replicas](Plan::replicas) do not divide the
    /// parameters that it updates.
    pub fn custom_optimizer(mut self, optimizer: impl Optimizer) -> Self {
        self.optimizer = Some(Rule {
            description: std::any::type_name_of_val(&optimizer).to_owned(),
            optimizer: Arc::new(optimizer),
            clipping: None,
            is_by_element: false,
        });
        self
    }

    /// Sets the seed of initial values and of dropout masks. Default: 0.
    pub fn seed(mut self, seed: impl Into<Seed>) -> Self {
        self.settings.seed = seed.into();
        self
    }

    /// Clips gradients before each update. Default: no clipping.
    pub fn clip(mut self, clipping: Clipping) -> Self {
        self.settings.clipping = Some(clipping);
        self
    }

    /// Sets whether the indices of each gather, selection, embedding and scatter, including the targets
    /// of a cross-entropy, are checked. An index out of range is then
    /// [`ActionError::IndexOutOfRange`](crate::ActionError::IndexOutOfRange), which names the module
    /// and the tensor of the batch, instead of a panic of Burn.
    ///
    /// Indices that are a whole tensor of the batch are checked before anything runs
    /// ([`StepError::MicroBatch`](crate::StepError::MicroBatch)), and the pipeline can continue
    /// with another batch. Others are checked where they are read, and the pipeline stops after an
    /// error.
    ///
    /// Default: on in builds with debug assertions. Costs two passes over the indices; on a GPU, each
    /// such operation waits for the operations queued before it. The targets of a CTC loss are not checked.
    pub fn check_indices(mut self, check: bool) -> Self {
        self.settings.check_indices = check;
        self
    }

    /// Refuses batches whose micro-batches have another shape than those of the traced step, such as the last and smaller batch of
    /// an epoch, or one of longer sequences: [`StepError::Shape`](crate::StepError::Shape), in steps and evaluations. Micro-batches
    /// with one sample less are not refused if the samples of the traced batch can't be divided equally. Default: the programs
    /// of another shape are recorded first.
    pub fn fixed_shapes(mut self) -> Self {
        self.options.fixed_shapes = true;
        self
    }

    /// Measures the time of each action and the memory of each rank:
    /// [`StepOutput::timeline`](crate::StepOutput::timeline). Costs two readings of the clock per
    /// action, and one pass over the gradients per program.
    pub fn measure(mut self) -> Self {
        self.settings.measure = true;
        self
    }

    /// Sets the source of initial values. Default: the [initializer](Deferred::initializer) of the model. A streamed model reads it again in
    /// every pass; its [store](Self::store) has its own. Other ranks drop it once they have their values, unless a
    /// [recovery](Self::recovery) may have to begin again.
    pub fn source(mut self, source: impl Source + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Sets an observer of the ranks' progress with their parameters; each rank reports its own begin
    /// and end, and a streamed model those of each group of parameters, in every pass.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Sets the device of every rank. Default: the CPU.
    pub fn device(mut self, device: &Device) -> Self {
        self.options.devices = vec![device.clone().without_autodiff()];
        self
    }

    /// Sets the number of CPU threads of each rank, at least 1. Default: the threads that this process may use, divided by the
    /// number of ranks that may use them, at least 1. Burn divides large operations among them; up to four
    /// independent matrix products that it does not divide run at the same time. The source of a streamed model has its own
    /// threads.
    pub fn threads_per_rank(mut self, threads: usize) -> Self {
        self.options.threads_per_rank = Some(threads);
        self
    }

    /// Returns the optimizers of all parameters, if there are any.
    pub(super) fn optimizers(&self) -> Option<Optimizers> {
        let (base, groups) = (self.optimizer.clone()?, self.groups.clone());
        Some(Optimizers::new(base, groups, self.settings.average_decay))
    }

    /// Returns the source of the values of parameters, which reports to the observer.
    pub(super) fn source_of_values(&self) -> Arc<dyn Source> {
        let source = self.initial_values();
        match &self.observer {
            Some(observer) => Arc::new(Observed::new(source, observer.clone())),
            None => source,
        }
    }

    /// Returns the source of the values of parameters.
    #[doc(hidden)]
    pub fn initial_values(&self) -> Arc<dyn Source> {
        match &self.source {
            Some(source) => source.clone(),
            None => Arc::new(self.model.initializer(self.settings.seed)),
        }
    }
}

/// What the comparison of a step with plain Burn needs.
#[doc(hidden)]
impl<M: Module + Sync + 'static, B: Batch> PipelineBuilder<M, B> {
    /// Returns the model.
    pub fn model(&self) -> &Deferred<M> {
        &self.model
    }

    /// Returns the trace.
    pub fn trace(&self) -> &Trace<B> {
        &self.trace
    }

    /// Returns the device of the first rank, if there are devices.
    pub fn first_device(&self) -> Option<&Device> {
        self.options.devices.first()
    }

    /// Returns whether ranks are other processes.
    pub fn has_world(&self) -> bool {
        self.kind.world.is_some()
    }

    /// Keeps the gradients as the backward computes them: nothing clips or changes them, and a rate of 0 updates nothing.
    pub fn gradients_of_backward(mut self) -> Self {
        self.settings.clipping = None;
        self.settings.stop_on_non_finite = false;
        self.settings.gradient_hook = None;
        self.settings.average_decay = None;
        self.groups = Vec::new();
        self.optimizer(SgdConfig::new()).keep_gradients()
    }
}

impl<M: Module + Sync + 'static, B: Batch> PipelineBuilder<M, B> {
    /// Keeps an exponential moving average of every parameter that trains: after each step it is
    /// `decay * average + (1 - decay) * value`, beginning with the initial value, also of a parameter that is
    /// [frozen](Pipeline::freeze) or has no gradient in the step. The averages are saved and resumed with the state of the
    /// optimizer, and used by [`with_averages`](Pipeline::with_averages). Default: none.
    ///
    /// Memory: the bytes of the parameters once more, on the ranks that own them; for 16 bits twice, because averages are in
    /// f32. Running states, and parameters that are frozen in the trace, have no average.
    pub fn average(mut self, decay: f64) -> Self {
        self.settings.average_decay = Some(decay);
        self
    }

    /// Sets a function of the path and the gradient of a parameter, which is called on its rank before each update, with
    /// the gradient of the whole batch, after clipping. The optimizer gets what it returns, which must have the same
    /// shape and dtype. A sum in it over 4 Mi elements or more has no fixed order on a rank with several threads. Default: none.
    pub fn on_gradients(
        mut self,
        change: impl Fn(&ParameterPath, DynTensor) -> DynTensor + Send + Sync + 'static,
    ) -> Self {
        self.settings.gradient_hook = Some(Arc::new(change));
        self
    }

    /// Sets the schedule of a training step: a [`ScheduleKind`](crate::schedule::ScheduleKind), or a
    /// custom [`Schedule`](crate::schedule::Schedule). Default: the schedule of the plan.
    ///
    /// The plan must place its stages on the ranks as the schedule does. A custom schedule is for the micro-batches of one replica:
    /// of a batch, or of several that [`step_accumulated`](Pipeline::step_accumulated) gets.
    pub fn schedule(mut self, schedule: impl Into<ScheduleChoice>) -> Self {
        self.schedule = schedule.into();
        self
    }

    /// Sets the order in which the gradients of micro-batches are added. Default: [`GradientSum::Sequential`] for one
    /// replica, else [`GradientSum::Tree`] of 8 groups, or of one for each replica if there are more. Plans count the memory of the
    /// default: one replica with a tree of 8 groups holds up to four times the gradients.
    pub fn gradient_sum(mut self, sum: GradientSum) -> Self {
        self.settings.sum = sum;
        self
    }

    /// Scales the loss of a training step. Default: [dynamic](LossScale::dynamic) if the forward is
    /// [traced in f16](crate::MixedPrecision::f16), else no scaling.
    pub fn loss_scale(mut self, scale: LossScale) -> Self {
        self.options.loss_scale = Some(scale);
        self
    }

    /// Sets the factor of a dynamic [loss scale](Self::loss_scale), and the number of finite steps since it changed, to the
    /// values of an earlier run. Does nothing if the loss is not scaled, or has a fixed scale.
    pub fn resume_loss_scale(mut self, factor: f64, steps: u64) -> Self {
        let scale = self.options.loss_scale.as_mut();
        if let Some(scale) = scale {
            *scale = scale.resumed(factor, steps);
        }
        self
    }

    /// Ends a training step with [`StepError::NotFinite`](crate::StepError::NotFinite) before any rank
    /// updates if the loss or the norm of all gradients is NaN or infinite. The pipeline is then
    /// unchanged, and can continue with another batch. Default: off.
    ///
    /// Every rank waits for all others before its update, as with clipping by the norm of all
    /// gradients. With a [loss scale](Self::loss_scale), steps where only the gradients are not finite
    /// are skipped instead.
    pub fn stop_on_non_finite(mut self) -> Self {
        self.settings.stop_on_non_finite = true;
        self
    }

    /// Sets the devices of the ranks in order; if there are more ranks than devices, they are assigned
    /// round-robin, so that several ranks share a device. Messages between ranks are copied between
    /// their devices.
    pub fn devices(mut self, devices: &[Device]) -> Self {
        let devices = devices.iter();
        let devices = devices.map(|device| device.clone().without_autodiff());
        self.options.devices = devices.collect();
        self
    }

    /// Sets the memory limit that ranks are checked against before they materialize parameters.
    /// Default: the free memory of each device. [`MemoryCheck::Bytes`] applies to each device, and to
    /// each stage when it is materialized. A restore checks one group of values, as many bytes as the
    /// largest parameter, since it replaces values in place.
    pub fn memory_check(mut self, check: MemoryCheck) -> Self {
        self.settings.memory_check = check;
        self
    }

    /// Keeps the gradients of each step readable ([`Stage::gradients`](crate::Stage::gradients)), which
    /// needs additional memory of their size. Default: they are freed at the update.
    pub fn keep_gradients(mut self) -> Self {
        self.settings.keep_gradients = true;
        self
    }

    /// Detects damage: before every so many steps, checks that what the ranks hold has not changed in memory since the step before.
    /// A bit that flips would train the model silently wrong. A changed parameter is replaced by the parameter of another
    /// [replica](Plan::replicas), and [reported](Pipeline::repaired); without another one, and for a change of the optimizer's
    /// state, the step fails with [`PipelineError::Damaged`](crate::PipelineError::Damaged). Replicas are also compared with each
    /// other: one that differs from most is repaired, and two that differ are such an error. 0, the default, checks nothing.
    ///
    /// Replicas that are threads of one process share the memory of most parameters on the CPU, so only processes have
    /// another value of these.
    ///
    /// Cost of a checked step: two passes over parameters and state, and two copies of the state to the host.
    pub fn detect_damage(mut self, every: u64) -> Self {
        self.options.detect_damage = (every > 0).then_some(every);
        self
    }

    /// Sets the number of programs that are kept, one for each mode and shape of a micro-batch: the
    /// most recently used, and always the programs of the current step. Default: 16.
    ///
    /// A batch of a shape that is not kept is recorded, cut and loaded first, like every new shape. A
    /// kept program needs memory for its operations (about a kilobyte each), and for its constants on
    /// the devices. Creating and dropping a program are `tracing` events at the debug level, with the
    /// total number so far.
    pub fn keep_programs(mut self, count: usize) -> Self {
        self.options.kept_programs = count;
        self
    }

    /// Sets the timeout of a message. Default: ten minutes. A step may take any time as long as some
    /// rank finishes an action; the driver ends it if none does for two to three times the timeout, so
    /// that the rank that waits for a missing message reports it first.
    ///
    /// Materializing or reading parameters (the start, a [restore](Pipeline::restore)) may take any
    /// time as long as some rank reports progress: a complete parameter, or bytes of one. Progress is
    /// checked once per timeout; without any, the request fails with
    /// [`RankError::Stalled`](crate::RankError::Stalled). A call by [`on_ranks`](Pipeline::on_ranks) must
    /// finish within the timeout unless it reports to [`Stage::observer`](crate::Stage::observer).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = timeout;
        self
    }

    /// Wraps each rank's link to the others, to count, delay or log messages. Default: no wrapper.
    pub fn links(mut self, wrap: impl Fn(RankIndex, LocalLink) -> Box<dyn Link> + 'static) -> Self {
        self.kind.links = Some(Box::new(wrap));
        self
    }

    /// Runs only the rank of this process; the others run in the other processes of a world, which all make the same calls
    /// in the same order. A world of one process runs all ranks, as without this.
    ///
    /// Each process reads from the batch what the stages of its rank read, and gets the whole
    /// [`StepOutput`](crate::StepOutput). The link of a process is not [wrapped](Self::links).
    ///
    /// The start compares versions, plan, graph, seed, schedule and optimizer of all processes; each step compares the
    /// shapes of the batch. [`on_ranks`](Pipeline::on_ranks) runs on the rank of this process alone.
    pub fn world(mut self, world: &World) -> Self {
        self.kind.world = (world.size() > 1).then(|| world.clone());
        self
    }

    /// Sets whether the processes of a [world](Self::world) compare the values of their batches in each step, not only the
    /// shapes. Default: off. Costs a pass over the batch.
    pub fn check_batches(mut self, check: bool) -> Self {
        self.options.checks_batches = check;
        self
    }

    /// Sets which processes of a [world](Self::world) get the named outputs of a step. Default: all of them.
    pub fn outputs_on(mut self, outputs: OutputsOn) -> Self {
        self.options.outputs = outputs;
        self
    }

    /// Continues when a process of the [world](Self::world) is lost, from the last completed step, on the CPU with the same bits.
    /// Default: off; a lost process then ends all. Without a world of processes, it does nothing. The cost and the limits are those
    /// of [`Recovery`](crate::Recovery). The [timeout](Self::timeout) is longer than a process may be silent.
    ///
    /// ```
    /// # use burn::nn::Linear;
    /// # use burn::tensor::Tensor;
    /// # use tinderbox_pipeline::{PipelineBuilder, Recovery};
    /// # use tinderbox_world::World;
    /// # fn example(builder: PipelineBuilder<Linear, Tensor<2>>, world: &World) {
    /// let builder = builder.world(world).recovery(Recovery::default());
    /// # }
    /// ```
    pub fn recovery(mut self, recovery: Recovery) -> Self {
        self.kind.recovery = Some(recovery);
        self
    }
}
