//! Models that do not fit in memory: the parameters of each stage are read before it runs, and dropped after it.

mod bytes;
mod pass;
mod reader;
mod rows;
mod setup;
mod spill;
mod store;
mod tier;
mod values;

use std::fmt;
use std::sync::Arc;

use burn::module::{Module, ParamGroup};
use burn::optim::Optimizer;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::tensor::Device;
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{Deferred, MaterializeError, Observer, Request, Source};
use tinderbox_fake::{DeviceLabel, Mode, is_host};
use tinderbox_planner::{DiskRate, MemoryBudget, StreamPrediction};

pub(crate) use bytes::CutBytes;
pub(super) use pass::{Pass, Passes};
pub(super) use reader::Streaming;
pub(super) use rows::{ParameterRows, RowSource};
pub(super) use setup::StreamedSetup;
use store::Stored;
pub use store::{StageStore, StreamedTraining, UpdatedStage};
pub(super) use values::{Activation, State, States, Values};

use super::builder::PipelineBuilder;
use super::carry::Carry;
use super::clip::Clipping;
use super::optimizer::OptimizerConfig;
use super::output::{Evaluation, StepOutput};
use super::pipeline::{Condition, Pipeline};
use crate::batch::Batch;
use crate::schedule::RankIndex;
use crate::trace::Trace;
use crate::{PipelineError, Plan, StreamedError};

/// A model whose parameters do not stay in memory: the parameters of each stage are read before it runs, and dropped after it.
///
/// A pass runs the stages in order, each for all micro-batches, and so it reads every parameter once, whatever the number of
/// samples. While a stage runs, the parameters of the next ones are read. The order of a pass is known before it begins and the
/// next pass has the same one: what fits beside the stages in turn stays in memory for good
/// ([`StreamPlan`](crate::planner::StreamPlan)). The values equal the values of [`Pipeline::evaluate`], bit for bit.
///
/// ```
/// # extern crate tinderbox_pipeline as tinderbox;
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::tensor::{Device, Tensor};
/// # use tinderbox_deferred::Deferred;
/// use tinderbox::{MemoryBudget, Outputs, Plan, Streamed, Traceable};
///
/// # let model = Deferred::new(|device: &Device| -> Vec<Linear> {
/// #     (0..8).map(|_| LinearConfig::new(64, 64).init(device)).collect()
/// # })?;
/// # let batch = Tensor::<2>::ones([8, 64], &Device::flex());
/// let trace = model.trace_forward(&batch, |layers: &Vec<Linear>, x| {
///     Outputs::none().with("y", layers.iter().fold(x, |x, layer| layer.forward(x)))
/// })?;
/// // Not all of the eight layers fit.
/// let budget = MemoryBudget::Values(64 << 10);
/// let plan = Plan::streamed(&trace, budget)?;
/// let mut streamed = Streamed::new(&model, &trace, &plan).memory(budget).start()?;
/// let y = streamed.evaluate(batch)?.tensor::<2>("y")?;
/// assert_eq!(y.dims(), [8, 64]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping it stops the threads.
pub struct Streamed<M, B> {
    pipeline: Pipeline<M, B>,
}

/// Builds a [`Streamed`] model; all settings have defaults.
pub struct StreamedBuilder<M, B> {
    builder: PipelineBuilder<M, B>,
    budget: MemoryBudget,
}

impl<M: Module + Sync + 'static, B: Batch> Streamed<M, B> {
    /// Returns a builder of a streamed model. The plan has one rank and as many stages as are needed ([`Plan::streamed`]).
    #[expect(clippy::new_ret_no_self, reason = "the builder creates it")]
    pub fn new(model: &Deferred<M>, trace: &Trace<B>, plan: &Plan) -> StreamedBuilder<M, B> {
        StreamedBuilder {
            builder: Pipeline::new(model, trace, plan),
            budget: MemoryBudget::default(),
        }
    }

    /// Runs the forward, as [`Pipeline::evaluate`] does: a pass over the stages.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::evaluate`]; when the batch needs more memory than is allowed, before anything runs; when a parameter can't
    /// be read.
    pub fn evaluate(&mut self, batch: B) -> Result<Evaluation, PipelineError> {
        self.pipeline.evaluate(batch)
    }

    /// Runs the forward with [carried](crate::Carried) values that stay in memory, as [`Pipeline::evaluate_with`] does: such as
    /// the caches of a text that is generated token by token. Each token costs a pass over the stages; several texts in one batch
    /// share it.
    ///
    /// # Errors
    ///
    /// As [`evaluate`](Self::evaluate) and [`Pipeline::evaluate_with`].
    pub fn evaluate_with(
        &mut self,
        carry: &mut Carry,
        batch: B,
    ) -> Result<Evaluation, PipelineError> {
        self.pipeline.evaluate_with(carry, batch)
    }

    /// Runs the forward of one batch after the other with one carry: `next` makes each batch of what the one before it gave, such
    /// as the token with the highest score, and ends the sequence with `None`. Returns the last result. The first stages of a
    /// batch are read while that before it is evaluated.
    ///
    /// # Errors
    ///
    /// As [`evaluate_with`](Self::evaluate_with).
    pub fn generate(
        &mut self,
        carry: &mut Carry,
        first: B,
        mut next: impl FnMut(&Evaluation) -> Option<B>,
    ) -> Result<Evaluation, PipelineError> {
        let mut output = self.evaluate_with(carry, first)?;
        while let Some(batch) = next(&output) {
            output = self.evaluate_with(carry, batch)?;
        }
        Ok(output)
    }

    /// Runs a training step, as [`Pipeline::step`] does, and commits it to the [store](StreamedBuilder::store).
    ///
    /// The stages run forward and then backward, each for all micro-batches at a time, with their parameters; directly after its
    /// backward, a stage is updated and written. So a step reads every parameter twice, but for what stays, and the optimizer's state
    /// once, and writes both. Activations that do not fit in memory from the forward to the backward are written to the
    /// [scratch directory](StageStore::scratch_dir) of the store and read again. Gradients stay in memory until the update, which
    /// with a clip by the norm of all gradients is after the last backward: all of them are in memory then, and updated in another
    /// pass over the stages.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::step`]; when the step needs more memory than is allowed, before anything runs; when values can't be read,
    /// written or committed: the store has the last committed step then, and training continues from it after another start.
    pub fn step(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        batch: B,
    ) -> Result<StepOutput, PipelineError> {
        let store = self.pipeline.streamed.as_ref();
        let store = store.and_then(|streamed| streamed.store.clone());
        let store = store.ok_or(StreamedError::NoStore)?;
        let output = self.pipeline.step(lr, batch)?;
        let step = self.pipeline.steps();
        // Until then, values in memory are of the step, and the values of the store are not.
        self.pipeline.condition = Condition::Stopped;
        match store.commit(step) {
            Ok(()) => self.pipeline.condition = Condition::Sound,
            Err(source) => {
                self.pipeline.resume_at(store.step());
                return Err(StreamedError::Commit { step, source }.into());
            }
        }
        Ok(output)
    }

    /// Returns the number of completed training steps, those before the start among them.
    pub fn steps(&self) -> u64 {
        self.pipeline.steps()
    }

    /// Returns a carry without values ([`Pipeline::carry`]).
    pub fn carry(&mut self) -> Carry {
        self.pipeline.carry()
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        self.pipeline.plan()
    }

    /// Predicts the last pass, every time but the first: what it reads and keeps, and how long it takes if the source reads
    /// values at this rate; of a training step, the bytes alone are the step's own. The times of the stages are from the plan,
    /// which was made with the [rates](crate::Machine::rates) or the [times](crate::Planner::times) of the device. `None`
    /// before the first evaluation of a model that was traced for training and has no [store](StreamedBuilder::store).
    pub fn predict(&self, disk: DiskRate) -> Option<StreamPrediction> {
        let stages = self.pipeline.plan.stages();
        let passes = self.pipeline.passes.as_ref()?;
        passes.prediction(disk, |stage| {
            let forward = stages[stage.index()].costs.forward;
            forward.saturating_mul(self.pipeline.micro_batches as u64)
        })
    }
}

impl<M: Module + Sync + 'static, B: Batch> StreamedBuilder<M, B> {
    /// Sets the memory limit. Default: nine tenths of what the process can allocate.
    ///
    /// It is a limit of all bytes as far as they are known: parameters that stay and those being read, activations, carried
    /// tensors and the batch, the memory that products of 16-bit numbers take inside, and with [`MemoryBudget::Bytes`] what the
    /// process holds already. An operation that needs other memory of its own may exceed it. With [`MemoryBudget::Bytes`], freed memory
    /// is returned to the system from then on, in the whole process ([`tinderbox_pages::return_freed_blocks`]).
    #[must_use]
    pub fn memory(mut self, budget: MemoryBudget) -> Self {
        self.budget = budget;
        self
    }

    /// Sets how many bytes of parameters may stay in the memory of the host, between a device with its own memory and the source:
    /// those that do not stay on the device, and that a training step does not change. Default: none. On the CPU it is more memory
    /// beside [the memory of the model](Self::memory), which serves better there.
    #[must_use]
    pub fn host_memory(mut self, bytes: u64) -> Self {
        self.builder.host_bytes = bytes;
        self
    }

    /// Sets the source of parameters, which is read again in every pass; a [store](Self::store) has its own. Default: a replay of the
    /// model's own initialization.
    #[must_use]
    pub fn source(mut self, source: impl Source + 'static) -> Self {
        self.builder = self.builder.source(source);
        self
    }

    /// Trains with an optimizer, as [`PipelineBuilder::optimizer`] does; needs a [store](Self::store).
    #[must_use]
    pub fn optimizer(mut self, optimizer: impl OptimizerConfig) -> Self {
        self.builder = self.builder.optimizer(optimizer);
        self
    }

    /// Sets the optimizer of a group of parameters ([`PipelineBuilder::optimizer_group`]).
    #[must_use]
    pub fn optimizer_group(mut self, group: ParamGroup, optimizer: impl OptimizerConfig) -> Self {
        self.builder = self.builder.optimizer_group(group, optimizer);
        self
    }

    /// Trains with a custom optimizer ([`PipelineBuilder::custom_optimizer`]).
    #[must_use]
    pub fn custom_optimizer(mut self, optimizer: impl Optimizer) -> Self {
        self.builder = self.builder.custom_optimizer(optimizer);
        self
    }

    /// Clips gradients ([`PipelineBuilder::clip`]). With the norm of all of them, all are in memory until it is known.
    #[must_use]
    pub fn clip(mut self, clipping: Clipping) -> Self {
        self.builder = self.builder.clip(clipping);
        self
    }

    /// Sets where the trained parameters and the state of the optimizer are while their stages do not run. All parameters are read
    /// from its source, in place of [`source`](Self::source), and training continues with the step after the last one that it has.
    #[must_use]
    pub fn store(mut self, store: impl StageStore + 'static) -> Self {
        self.builder.store = Some(Arc::new(store));
        self
    }

    /// Sets an observer of the reads: of each group of parameters, in every pass.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.builder = self.builder.observer(observer);
        self
    }

    /// Sets the device. Default: the CPU.
    #[must_use]
    pub fn device(mut self, device: &Device) -> Self {
        self.builder = self.builder.device(device);
        self
    }

    /// Sets the seed of random values of the forward, such as the values of dropout, and of a replay, if no
    /// [source](Self::source) is set. Default: 0.
    #[must_use]
    pub fn seed(mut self, seed: impl Into<Seed>) -> Self {
        self.builder = self.builder.seed(seed);
        self
    }

    /// Sets the number of micro-batches of a batch, at least 1. Default: the plan's number. Each stage runs all of them before
    /// the next stage does, so smaller ones need less memory for what an operation computes, and no more reading.
    #[must_use]
    pub fn micro_batches(mut self, count: usize) -> Self {
        self.builder = self.builder.micro_batches(count);
        self
    }

    /// Sets whether indices are checked ([`PipelineBuilder::check_indices`]).
    #[must_use]
    pub fn check_indices(mut self, check: bool) -> Self {
        self.builder = self.builder.check_indices(check);
        self
    }

    /// Measures the time of each action ([`PipelineBuilder::measure`]).
    #[must_use]
    pub fn measure(mut self) -> Self {
        self.builder = self.builder.measure();
        self
    }

    /// Sets the number of CPU threads that compute, at least 1. Default: those that this process may use. The source has threads
    /// of its own.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.builder = self.builder.threads_per_rank(threads);
        self
    }

    /// Starts the threads. Checks that the source has the parameters of the model; reads none.
    ///
    /// # Errors
    ///
    /// As [`PipelineBuilder::start`]; [`StreamedError::Ranks`] when the plan has more than one rank;
    /// [`StreamedError::ProcessBudget`] when the limit is one of the process, and the device has its own memory;
    /// [`StreamedError::Budget`] when the memory limit is too low for the traced batch, with the least one. If it was traced for
    /// training, and there is no store, the first evaluation says so.
    pub fn start(self) -> Result<Streamed<M, B>, PipelineError> {
        let mut builder = self.builder;
        let ranks = builder.plan.world_size();
        if ranks != 1 {
            return Err(StreamedError::Ranks { ranks }.into());
        }
        builder.budget = Some(self.budget);
        let table = builder.model.parameters().clone();
        let device = builder.devices[0].clone();
        if matches!(self.budget, MemoryBudget::Bytes(_)) && !is_host(&device) {
            let device = DeviceLabel::of(&device);
            return Err(StreamedError::ProcessBudget { device }.into());
        }
        if let Some(store) = &builder.store {
            builder.source = Some(Arc::new(Stored(store.clone())));
        }
        let source = builder.source_of_values();
        let requests = table
            .distinct()
            .map(|parameter| Request::of(&table, parameter, &device));
        let checked = source.check(&table, &requests.collect::<Vec<_>>());
        checked.map_err(|source| PipelineError::Materialize {
            rank: RankIndex::new(0),
            source: MaterializeError::from(source),
        })?;
        let is_forward = builder.trace.mode() == Mode::Inference;
        let mut pipeline = builder.launch()?;
        if let Some(streamed) = pipeline.streamed.clone() {
            streamed.start(&mut pipeline)?;
        }
        let micro_batches = pipeline.micro_batches;
        let example = pipeline.programs.example()?;
        let cuts = vec![&*example; micro_batches];
        let streamed = pipeline.streamed.as_ref();
        let trained = streamed.map(|streamed| streamed.trained.clone());
        let trains = streamed.is_some_and(|streamed| streamed.store.is_some());
        let mode = match is_forward {
            true => Some(Mode::Inference),
            false => trains.then_some(Mode::Training),
        };
        // Before the memory of the process is measured.
        let parts = mode.map(|mode| pipeline.programs.parts(mode, &cuts));
        let parts = parts.transpose()?;
        let may_write = streamed.is_some_and(|streamed| streamed.scratch_dir.is_some());
        let trained = (trained.unwrap_or_default(), may_write);
        let mut passes = Passes::new(self.budget, (table, device), source, trained);
        if let (Some(mode), Some(parts)) = (mode, parts) {
            passes.pass(mode, &parts[0].lists, &cuts, 0)?;
        }
        pipeline.passes = Some(passes);
        Ok(Streamed { pipeline })
    }
}

impl<M, B> fmt::Debug for Streamed<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Streamed").field(&self.pipeline).finish()
    }
}

impl<M, B> fmt::Debug for StreamedBuilder<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamedBuilder")
            .field("builder", &self.builder)
            .field("budget", &self.budget)
            .finish()
    }
}
