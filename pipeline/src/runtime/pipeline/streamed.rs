//! Models that do not fit in memory: the parameters of each stage are read before it runs, and dropped after it.

use std::sync::Arc;

use burn::module::Module;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use tinderbox_deferred::Deferred;
use tinderbox_fake::{DeviceLabel, Mode, is_host};
use tinderbox_planner::{DiskRate, MemoryBudget, StreamPrediction};

use super::builder::PipelineBuilder;
use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::error::Result;
use crate::runtime::driver::{Carry, Condition, Evaluation, RankKind, StepOutput};
use crate::runtime::pass::Passes;
use crate::runtime::ranks::SharedPasses;
use crate::runtime::streamed::{OnDemand, StageStore, Stored, StreamedSetup, StreamedTraining};
use crate::schedule::{RankIndex, StageIndex};
use crate::trace::Trace;
use crate::{Plan, StateError, StreamedError};

/// A model whose parameters do not stay in memory: the parameters of each stage are read before it runs, and dropped after it.
///
/// A pass runs the stages in order, each for all micro-batches, so it reads every parameter once for any number of samples.
/// While a stage runs, the parameters of the next stages are read. The order is known before the pass begins, and the next
/// pass has the same order. The parameters that fit in addition to the running stages remain resident
/// ([`StreamPlan`](crate::planner::StreamPlan)). The values equal the values of [`Pipeline::evaluate`], bit for bit.
///
/// ```
/// # extern crate tinderbox_pipeline as tinderbox;
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::tensor::{Device, Tensor};
/// # use tinderbox_deferred::Deferred;
/// use tinderbox::{MemoryBudget, Outputs, Streamed, Traceable};
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
/// let plan = trace.plan_streamed(budget)?;
/// let mut streamed = Streamed::builder(&model, &trace, &plan).memory_limit(budget).start()?;
/// let y = streamed.evaluate(batch)?.tensor::<2>("y")?;
/// assert_eq!(y.dims(), [8, 64]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping it stops the threads.
#[derive(derive_more::Debug)]
#[debug("Streamed({pipeline:?})")]
pub struct Streamed<M, B> {
    pipeline: Pipeline<M, B>,
    passes: SharedPasses,
    store: Option<Arc<dyn StageStore>>,
}

/// Builds a [`Streamed`] model; all settings have defaults.
pub type StreamedBuilder<M, B> = PipelineBuilder<M, B, OnDemand>;

impl<M: Module + Sync + 'static, B: Batch> Streamed<M, B> {
    /// Returns a builder of a streamed model. The plan must have one rank; [`Trace::plan_streamed`] returns such plans.
    pub fn builder(model: &Deferred<M>, trace: &Trace<B>, plan: &Plan) -> StreamedBuilder<M, B> {
        StreamedBuilder::of_kind(model, trace, plan)
    }

    /// Runs the forward, as [`Pipeline::evaluate`] does, in a pass over the stages. Its activations stay in memory, so it may
    /// need more memory than a training step.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::evaluate`]; when the batch needs more memory than is allowed, before anything runs; when a parameter
    /// can't be read.
    pub fn evaluate(&mut self, batch: B) -> Result<Evaluation> {
        self.pipeline.evaluate(batch)
    }

    /// Runs the forward with [carried](crate::Carried) values that stay in memory, as [`Pipeline::evaluate_carried`] does, for
    /// example the caches of a text that is generated token by token. Each token costs a pass over the stages; several texts in
    /// one batch share it. The first stages of a batch are read while the result of the previous batch is used.
    ///
    /// # Errors
    ///
    /// As [`evaluate`](Self::evaluate) and [`Pipeline::evaluate_carried`].
    pub fn evaluate_carried(&mut self, carry: &mut Carry, batch: B) -> Result<Evaluation> {
        self.pipeline.evaluate_carried(carry, batch)
    }

    /// Runs a training step, as [`Pipeline::step`] does, and commits it to the [store](StreamedBuilder::store).
    ///
    /// The stages run forward and then backward, each for all micro-batches at a time. Directly after its backward, a stage
    /// is updated and written. So a step reads every parameter twice, except parameters that stay in memory. It reads the
    /// optimizer's state once, and writes both. Activations that do not fit in memory from the forward to the backward are
    /// written to the [scratch directory](StageStore::scratch_dir) of the store and read again. Gradients stay in memory
    /// until the update. With clipping by the norm of all gradients, the update is after the last backward: all gradients are
    /// in memory then, and another pass over the stages updates them.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::step`]; when the step needs more memory than is allowed, before anything runs; when values can't be read,
    /// written or committed. The store then has the last committed step, and training continues from it after another start.
    pub fn step(&mut self, lr: impl Into<ModuleLearningRate>, batch: B) -> Result<StepOutput> {
        let store = self.store.clone().ok_or(StreamedError::NoStore)?;
        let output = self.pipeline.step(lr, batch)?;
        let step = self.pipeline.steps();
        // Until the commit, the values in memory are of this step, and the values of the store are of the last one.
        self.pipeline.driver.condition = Condition::Stopped;
        match store.commit(step) {
            Ok(()) => self.pipeline.driver.condition = Condition::Sound,
            Err(source) => {
                self.pipeline.resume_at(store.step());
                return Err(StreamedError::Commit { step, source }.into());
            }
        }
        Ok(output)
    }

    /// Returns the number of completed training steps, including the steps before the start.
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

    /// Predicts repetitions of the last pass: the bytes that it reads and keeps, and its time if the source reads values at
    /// this rate. For a training step, only the bytes are valid. The times of the stages come from the plan, which has the
    /// [rates](crate::Machine::rates) or the [times](crate::Planner::times) of the device. Returns `None` before the first
    /// evaluation of a model that was traced for training and has no [store](StreamedBuilder::store).
    pub fn predict(&self, disk: DiskRate) -> Option<StreamPrediction> {
        let driver = &self.pipeline.driver;
        let stages = &driver.plan.stages;
        let passes = self.passes.lock();
        passes.as_ref()?.prediction(disk, |stage| {
            let forward = stages[stage.index()].costs.forward;
            forward.saturating_mul(driver.options.micro_batches as u64)
        })
    }
}

impl<M: Module + Sync + 'static, B: Batch> StreamedBuilder<M, B> {
    /// Sets the memory limit. Default: nine tenths of what the process can allocate.
    ///
    /// The limit covers all bytes that are known: parameters that stay and parameters that are being read, activations,
    /// carried tensors, the batch, and the workspace of products of 16-bit numbers. With [`MemoryBudget::Bytes`] it also
    /// covers the memory that the process holds already. An operation that needs other temporary memory may exceed the limit.
    /// With [`MemoryBudget::Bytes`], freed memory is returned to the system from then on, in the whole process
    /// ([`tinderbox_memory::return_freed_blocks`]).
    pub fn memory_limit(mut self, budget: MemoryBudget) -> Self {
        self.kind.budget = budget;
        self
    }

    /// Sets the maximum bytes of parameters that may stay in the memory of the host, between a device with its own memory and
    /// the source. Only parameters stay there that do not stay on the device and that a training step does not change.
    /// Default: 0. On the CPU these bytes are in addition to the [memory limit](Self::memory_limit), and a higher limit is
    /// the better choice.
    pub fn host_memory(mut self, bytes: u64) -> Self {
        self.kind.host_bytes = bytes;
        self
    }

    /// Sets the store of the trained parameters and the optimizer's state while their stages do not run. All parameters are
    /// read from its source instead of [`source`](Self::source). Training continues after the last committed step of the
    /// store.
    pub fn store(mut self, store: impl StageStore + 'static) -> Self {
        self.kind.store = Some(Arc::new(store));
        self
    }

    /// Starts the threads. Checks that the source has the parameters of the model; reads none.
    ///
    /// # Errors
    ///
    /// As [`PipelineBuilder::start`]; [`StreamedError::Ranks`] when the plan has more than one rank;
    /// [`StreamedError::ProcessBudget`] when the limit is [`MemoryBudget::Bytes`] and the device has its own memory;
    /// [`StreamedError::Budget`] when the memory limit is too low for the traced batch, with the lowest possible limit. For a
    /// model that was traced for training and has no store, the first evaluation returns that error.
    pub fn start(mut self) -> Result<Streamed<M, B>> {
        let ranks = self.plan.world_size();
        if ranks != 1 {
            return Err(StreamedError::Ranks { ranks }.into());
        }
        let OnDemand { budget, store, .. } = self.kind.clone();
        let table = self.model.parameters().clone();
        let device = &self.options.devices[0];
        if matches!(budget, MemoryBudget::Bytes(_)) && !is_host(device) {
            let device = DeviceLabel::of(device);
            return Err(StreamedError::ProcessBudget { device }.into());
        }
        if let Some(store) = &store {
            self.source = Some(Arc::new(Stored(store.clone())));
        }
        let mode = Some(self.trace.mode());
        let mode = mode.filter(|mode| *mode == Mode::Inference || store.is_some());
        let launch = self.checked()?;
        launch.check_source()?;
        let passes = SharedPasses::default();
        let driver = launch.start(&self.plan, RankKind::Streamed(&self.kind, passes.clone()))?;
        let mut pipeline = self.pipeline(driver);
        let setup = pipeline.on_ranks(|_, stages| stages.first()?.setup.streamed.clone());
        let setup = setup?.into_iter().flatten().next();
        let setup = setup.expect("the plan has stages, and they are streamed");
        if let Some(store) = &store {
            resume(&mut pipeline, &setup, &**store)?;
        }
        let driver = &mut pipeline.driver;
        let example = driver.programs.example()?;
        let cuts = vec![&*example; driver.options.micro_batches];
        // Before the memory of the process is measured.
        let parts = mode.map(|mode| driver.programs.parts(mode, &cuts));
        let parts = parts.transpose()?;
        let mut planned = Passes::new(table, launch.source, setup);
        if let Some(parts) = parts {
            planned.pass(&parts[0].lists, &cuts, 0)?;
        }
        *passes.lock() = Some(planned);
        Ok(Streamed {
            pipeline,
            passes,
            store,
        })
    }
}

/// Begins or continues the training of a pipeline with its store.
fn resume<M: Module + Sync + 'static, B: Batch>(
    pipeline: &mut Pipeline<M, B>,
    setup: &StreamedSetup,
    store: &dyn StageStore,
) -> Result<()> {
    let driver = &pipeline.driver;
    let table = &*driver.table;
    let trained = setup.trained.iter().enumerate().map(|(stage, parameters)| {
        let changed = parameters.iter().filter(|(_, state)| state.is_some());
        let paths = changed.map(|(at, _)| table.iter().as_slice()[*at].path.clone());
        (StageIndex::new(stage), paths.collect::<Vec<_>>())
    });
    let started = store.start(&StreamedTraining {
        seed: driver.settings.seed,
        plan: &driver.plan,
        micro_batches: driver.options.micro_batches,
        settings: driver.run_settings(),
        trained: trained.filter(|(_, paths)| !paths.is_empty()).collect(),
        keeps_state: driver.keeps_optimizer_state(),
    });
    started.map_err(|source| StreamedError::Store { source })?;
    let checked = setup.check_states(table, &driver.settings);
    let rank = RankIndex::new(0);
    checked.map_err(|source| StateError::Restore { rank, source })?;
    pipeline.resume_at(store.step());
    Ok(())
}
