//! The handle that drives a pipeline.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use burn::module::Module;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::tensor::Device;
use tinderbox_deferred::{Deferred, Observed, Values, check_device, random::Seed};
use tinderbox_fake::Mode;

use super::builder::PipelineBuilder;
use super::clip::Clipping;
use super::crew::Crew;
use super::lists::ScheduleChoice;
use super::loss_scale::LossScale;
use super::memory::{check_memory, device_of};
use super::output::StepOutput;
use super::programs::Programs;
use super::rank::RankSetup;
use super::stage::Stage;
use super::step::{MicroInput, Rates, Round};
use crate::batch::{Batch, MicroBatch, batch_tensors, split};
use crate::schedule::{Costs, Dependencies, RankIndex, verify};
use crate::trace::Trace;
use crate::work::cast_bytes_by_path;
use crate::{PipelineError, Plan};

/// A model in training, its stages on ranks that run as threads.
///
/// Dropping it ends and joins the ranks.
pub struct Pipeline<M, B> {
    model: Deferred<M>,
    plan: Arc<Plan>,
    programs: Programs<B>,
    crew: Crew,
    seed: Seed,
    micro_batches: usize,
    clipping: Option<Clipping>,
    loss_scale: Option<LossScale>,
    measures: bool,
    /// A round has ended with an error that no rank knows of.
    is_broken: bool,
    trains: bool,
    step: u64,
    round: u64,
}

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// A pipeline of a model by a plan, to be set up and started.
    #[expect(clippy::new_ret_no_self, reason = "it is made by its builder")]
    pub fn new(model: &Deferred<M>, trace: &Trace<B>, plan: &Plan) -> PipelineBuilder<M, B> {
        PipelineBuilder::new(model, trace, plan)
    }

    pub(super) fn start(builder: PipelineBuilder<M, B>) -> Result<Self, PipelineError> {
        if builder.devices.is_empty() {
            return Err(PipelineError::NoDevices);
        }
        for device in &builder.devices {
            check_device(device)?;
        }
        let table = builder.model.parameters().clone();
        let clone = table
            .iter()
            .find_map(|p| Some((p.clone_of.clone()?, p.path.clone())));
        if let (Some((first, second)), true) = (clone, builder.optimizer.is_some()) {
            return Err(PipelineError::Clones { first, second });
        }
        let layout = builder.plan.layout(&table)?;
        // The trace may be of another model, or of another forward of the same one.
        builder.plan.layout(builder.trace.parameters())?;
        let traced = builder.trace.example_program()?;
        builder.plan.check_program(&traced, &table)?;
        let schedule = builder.schedule;
        let schedule = schedule.unwrap_or_else(|| builder.plan.schedule());
        let written = match &schedule {
            ScheduleChoice::Written(schedule) => Some(schedule.micro_batches),
            ScheduleChoice::Named(_) | ScheduleChoice::Planned(_) => None,
        };
        let stages = builder.plan.stages().len();
        let planned = builder.plan.file().step.micro_batches.max(1);
        let micro_batches = builder.micro_batches.or(written).unwrap_or(planned);
        if let Some(Clipping::GlobalNorm(max)) = builder.clipping
            && !(max > 0.0 && max.is_finite())
        {
            return Err(PipelineError::Clip { max });
        }
        if builder.optimizer.is_some() {
            // A schedule that does not fit is refused before anything is made. What its ranks wait for
            // is known when a batch is traced.
            let stage_to_rank = builder.plan.stage_to_rank();
            let count = written.unwrap_or(micro_batches);
            let alone = Dependencies::new(stages, [], []);
            let lists = schedule.compute(&stage_to_rank, count, &alone)?;
            verify(&lists, &alone).map_err(|source| PipelineError::Schedule { source })?;
        }
        check_memory(
            &builder.plan,
            &table,
            &cast_bytes_by_path(&traced, builder.trace.parameters()),
            &builder.devices,
            builder.optimizer.is_some(),
            builder.memory,
        )?;
        let plan = Arc::new(builder.plan);
        let source = builder
            .source
            .unwrap_or_else(|| Arc::new(builder.model.replay(builder.seed)));
        let source = match builder.observer {
            Some(observer) => Arc::new(Observed::new(source, observer)),
            None => source,
        };
        let ranks = plan.ranks();
        let setups = (0..ranks).map(|rank| RankSetup {
            rank: RankIndex::new(rank),
            plan: plan.clone(),
            table: table.clone(),
            device: device_of(RankIndex::new(rank), &builder.devices).clone(),
            memory: builder.memory,
            seed: builder.seed,
            optimizer: builder.optimizer.clone(),
            keep_gradients: builder.keep_gradients,
        });
        let machine = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = builder.threads_per_rank.unwrap_or((machine / ranks).max(1));
        let mut crew = Crew::start(
            setups.collect(),
            &source,
            threads,
            builder.timeout,
            builder.links.as_deref(),
        )?;
        crew.call("make its parameters", |_, _| ())?;
        // Whether the gradients are finite is read off their norm.
        let global_norm = matches!(builder.clipping, Some(Clipping::GlobalNorm(_)))
            || builder.loss_scale.is_some();
        let programs = Programs::new(builder.trace, layout, &plan, schedule, global_norm);
        Ok(Self {
            model: builder.model,
            programs,
            crew,
            seed: builder.seed,
            micro_batches,
            clipping: builder.clipping,
            loss_scale: builder.loss_scale,
            measures: builder.measure,
            is_broken: false,
            trains: builder.optimizer.is_some(),
            step: 0,
            round: 0,
            plan,
        })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The model, without its parameters.
    pub fn model(&self) -> &Deferred<M> {
        &self.model
    }

    /// The schedule of a training step.
    pub fn schedule(&self) -> &ScheduleChoice {
        self.programs.choice()
    }

    /// The seed.
    pub fn seed(&self) -> Seed {
        self.seed
    }

    /// Training steps done so far, those before a resume included.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Says how many training steps the parameters have behind them, after they were restored.
    pub fn resume_at(&mut self, step: u64) {
        self.step = step;
    }

    /// The factor on the loss, if there is one, as the next step will use it.
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.loss_scale
    }

    /// Goes on with the factor on the loss of an earlier run. Does nothing where the loss is not scaled, or by a fixed
    /// factor.
    pub fn resume_loss_scale(&mut self, factor: f64, steps: u64) {
        self.loss_scale = self.loss_scale.map(|scale| scale.resumed(factor, steps));
    }

    /// One training step: the batch is split into micro-batches, their gradients, weighted by their
    /// share of the samples, are summed in order, and every rank's optimizer steps as soon as the
    /// gradients of its stage are complete; with a clip by the norm of all gradients, when all are.
    ///
    /// With a [scaled loss](crate::LossScale) every rank waits for all others before its update, and a step whose
    /// gradients are not finite updates nothing.
    ///
    /// The learning rate is a number, or what a scheduler of Burn gives at its step. Its groups match
    /// parameters by their paths.
    ///
    /// # Errors
    ///
    /// When no optimizer was given, the batch can't be split or traced, or an action fails; in the
    /// last case the pipeline has stopped.
    pub fn step(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        batch: B,
    ) -> Result<StepOutput, PipelineError> {
        if !self.trains {
            return Err(PipelineError::NoOptimizer);
        }
        let parts = split(&batch, self.micro_batches)?;
        self.train(lr.into(), parts)
    }

    /// One training step over several batches, each split into micro-batches as by
    /// [`step`](Self::step): their gradients, weighted by the share of all samples, are accumulated, and
    /// every rank's optimizer steps once. The schedule runs over the micro-batches of all of them, so
    /// the ranks do not drain between two batches; a written schedule is for the micro-batches of all.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::step`]; [`BatchError::NoSamples`](crate::BatchError::NoSamples) without a batch.
    pub fn step_accumulated(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        batches: impl IntoIterator<Item = B>,
    ) -> Result<StepOutput, PipelineError> {
        if !self.trains {
            return Err(PipelineError::NoOptimizer);
        }
        let mut parts = Vec::new();
        for batch in batches {
            parts.extend(split(&batch, self.micro_batches)?);
        }
        if parts.is_empty() {
            return Err(PipelineError::from(crate::BatchError::NoSamples));
        }
        self.train(lr.into(), parts)
    }

    fn train(
        &mut self,
        lr: ModuleLearningRate,
        parts: Vec<MicroBatch<B>>,
    ) -> Result<StepOutput, PipelineError> {
        let step = self.step;
        let output = self.run(Mode::Training, lr, parts)?;
        if let Some(scale) = &mut self.loss_scale {
            scale.after_step(!output.skipped);
        }
        self.step = step + 1;
        Ok(output)
    }

    /// What a step with batches like `example` depends on and holds, for the simulator and for
    /// [`auto`](crate::schedule::auto): its edges and ties, and its bytes: parameters, gradients and values
    /// of micro-batches, but neither the optimizer's state nor what a program needs while it runs. Its
    /// times are zero: a measured
    /// step gives them, by [`Costs::with_times`].
    ///
    /// # Errors
    ///
    /// When the batch can't be split or traced.
    pub fn costs(&mut self, example: &B) -> Result<(Dependencies, Costs), PipelineError> {
        let parts = split(example, self.micro_batches)?;
        let cuts = parts
            .iter()
            .map(|part| self.programs.cut(Mode::Training, &part.batch))
            .collect::<Result<Vec<_>, _>>()?;
        let cuts: Vec<_> = cuts.iter().map(|cut| &**cut).collect();
        let dependencies = self
            .programs
            .dependencies(Mode::Training, cuts.iter().copied());
        let stages = self.plan.stages().iter();
        // A parameter, its gradient, and its copy in the type of the forward.
        let cast = self.programs.cast_bytes()?;
        let resident: Vec<u64> = stages
            .map(|stage| {
                let held = stage.parameters.iter().chain(&stage.replicas);
                let cast: u64 = held.filter_map(|path| cast.get(path)).sum();
                2 * stage.parameter_bytes + stage.replica_bytes + cast
            })
            .collect();
        // The first micro-batches are the largest.
        let largest = cuts.first().ok_or(crate::BatchError::NoSamples)?;
        Ok((dependencies, self.programs.bytes(largest, &resident)))
    }

    /// Runs the forward alone, without dropout, and gives the loss and the named outputs. Nothing of
    /// the model changes.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::step`]; a batch of fewer samples than micro-batches is split into fewer.
    pub fn evaluate(&mut self, batch: B) -> Result<StepOutput, PipelineError> {
        let samples = split(&batch, 1)?.first().map_or(0, |part| part.samples);
        let parts = split(&batch, self.micro_batches.min(samples).max(1))?;
        self.run(Mode::Inference, 0.0.into(), parts)
    }

    /// Runs code on every rank's thread, with its stages. Results come in the order of the ranks.
    ///
    /// # Errors
    ///
    /// When the code panics on a rank: the pipeline has then stopped.
    pub fn on_ranks<R: Send + 'static>(
        &mut self,
        call: impl Fn(RankIndex, &mut [Stage]) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>, PipelineError> {
        if self.is_broken {
            return Err(PipelineError::Stopped);
        }
        self.crew.call("run a call", call)
    }

    /// The trained model on one device, as an ordinary Burn module.
    ///
    /// # Errors
    ///
    /// When a rank has failed, or the closure makes another model than before.
    pub fn gather(&mut self, device: &Device) -> Result<M, PipelineError> {
        let values: Values = self
            .on_ranks(|_, stages| {
                let values = stages.iter().flat_map(|stage| stage.parameters().values());
                values
                    .map(|(path, value)| (path.clone(), value))
                    .collect::<Vec<_>>()
            })?
            .into_iter()
            .flatten()
            .collect();
        self.model
            .materialize(device, &values)
            .map_err(|source| PipelineError::Gather { source })
    }

    fn run(
        &mut self,
        mode: Mode,
        lr: ModuleLearningRate,
        parts: Vec<MicroBatch<B>>,
    ) -> Result<StepOutput, PipelineError> {
        if self.is_broken {
            return Err(PipelineError::Stopped);
        }
        let step = u32::try_from(self.step)
            .map_err(|_| PipelineError::StepOverflow { step: self.step })?;
        let samples: usize = parts.iter().map(|part| part.samples).sum();
        let loss_scale = self.loss_scale.filter(|_| mode == Mode::Training);
        let factor = loss_scale.map_or(1.0, |scale| scale.factor());
        let mut micro_batches = Vec::with_capacity(parts.len());
        let mut weights = Vec::with_capacity(parts.len());
        for part in &parts {
            let cut = self.programs.cut(mode, &part.batch)?;
            weights.push(part.samples as f64 / samples as f64);
            micro_batches.push(MicroInput {
                cut,
                inputs: batch_tensors(&part.batch),
                weight: part.samples as f32 / samples as f32 * factor as f32,
            });
        }
        let lists = self.programs.lists(mode, &micro_batches)?;
        let round = Arc::new(Round {
            round: self.round,
            step,
            lr: Rates(lr),
            clipping: self.clipping.clone(),
            loss_scale: loss_scale.map(|scale| scale.factor()),
            lists,
            micro_batches,
            epoch: self.measures.then(Instant::now),
        });
        self.round += 1;
        let request = match mode {
            Mode::Training => "run a training step",
            Mode::Inference => "run an evaluation",
        };
        let reports = self.crew.round(round.clone(), request)?;
        let output = StepOutput::collect(&round, reports, &weights);
        // The ranks have done their updates, but nobody knows what they are worth.
        self.is_broken = output.is_err();
        output
    }
}

impl<M, B> fmt::Debug for Pipeline<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("stages", &self.plan.stages().len())
            .field("seed", &self.seed)
            .field("schedule", &self.programs.choice())
            .field("micro_batches", &self.micro_batches)
            .field("steps", &self.step)
            .finish_non_exhaustive()
    }
}
