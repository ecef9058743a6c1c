//! The handle that controls a pipeline.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, FloatDType};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tinderbox_deferred::{Deferred, ParameterPath, Source, Values, random::Seed};
use tinderbox_fake::DynTensor;
use tinderbox_world::World;

use super::builder::PipelineBuilder;
use super::carry::{Carries, Carry};
use super::changed::Repaired;
use super::cores;
use super::crew::Crew;
use super::facts::Facts;
use super::learning_rates::{LastRates, StepRates};
use super::link::Abort;
use super::loss_scale::LossScale;
use super::memory::{check_memory, device_of};
use super::optimizer::OptimizerState;
use super::output::OutputsOn;
use super::prepared::Prepared;
use super::programs::Programs;
use super::rank::RankSetup;
use super::recovery::{CallKind, RecoveryState};
use super::remote::To;
use super::run_settings::Training;
use super::settings::Settings;
use super::stage::Stage;
use super::streamed::{Passes, StreamedSetup};
use crate::batch::{Batch, split_batch};
use crate::lists::ScheduleChoice;
use crate::schedule::{Costs, Dependencies, RankIndex};
use crate::trace::Trace;
use crate::{PipelineError, Plan};

/// A model in training, with stages on ranks that run as threads.
///
/// Dropping it stops and joins the ranks.
pub struct Pipeline<M, B> {
    pub(super) model: Deferred<M>,
    pub(super) plan: Plan,
    pub(super) programs: Programs<B>,
    pub(super) crew: Crew,
    pub(super) settings: Arc<Settings>,
    pub(super) micro_batches: usize,
    /// The loss scale of the next step.
    pub(super) loss_scale: Option<LossScale>,
    pub(super) condition: Condition,
    /// Whether the averages are exchanged with the parameters.
    pub(super) is_averaged: bool,
    pub(super) step: u64,
    pub(super) round: u64,
    pub(super) carries: Carries,
    /// The number of steps and evaluations, those that were refused among them.
    pub(super) calls: u64,
    /// A digest of what was frozen and set.
    pub(super) changes: u64,
    /// The 16-bit dtype of mixed precision.
    pub(super) compute: Option<FloatDType>,
    /// The learning rates of the last step.
    pub(super) last_rates: Option<LastRates>,
    pub(super) checks_batches: bool,
    pub(super) outputs: OutputsOn,
    pub(super) repaired: Vec<Repaired>,
    /// The parameters that do not train now, by position in the table.
    pub(super) frozen: BTreeSet<usize>,
    /// In how many steps all learning rates were the same; `None` once they were not, or that was reported.
    pub(super) equal_rates: Option<u32>,
    /// Plans what stays in memory, if the stages are streamed.
    pub(super) passes: Option<Passes>,
    pub(super) streamed: Option<Arc<StreamedSetup>>,
    /// What it continues with when other processes are lost.
    pub(super) recovery: Option<Box<RecoveryState<M, B>>>,
}

/// Whether the values of the ranks can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Sound,
    /// A restore has failed partway.
    PartlyRestored,
    /// The state of lost ranks is lost: values are initial.
    StateLost,
    /// A round has ended with an error that the driver detected.
    Stopped,
}

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Returns a builder of a pipeline for a model and a plan.
    #[expect(clippy::new_ret_no_self, reason = "the builder creates it")]
    pub fn new(model: &Deferred<M>, trace: &Trace<B>, plan: &Plan) -> PipelineBuilder<M, B> {
        PipelineBuilder::new(model, trace, plan)
    }

    pub(super) fn start(builder: PipelineBuilder<M, B>) -> Result<Self, PipelineError> {
        let Prepared {
            settings,
            layout,
            traced,
            schedule,
            micro_batches,
        } = Prepared::of(&builder)?;
        let ranks = builder.plan.world_size();
        let world = builder.world.as_ref();
        let processes = world.map_or(ranks, World::size);
        // Those beyond the plan's wait until another one is lost.
        if processes < ranks || (processes > ranks && builder.backups.is_none()) {
            return Err(PipelineError::WorldSize { ranks, processes });
        }
        // The ranks of this process, and their devices.
        let (own, devices) = match world {
            None => (0..ranks, builder.devices.clone()),
            Some(world) => {
                let (own, local) = (world.rank().index(), world.local());
                let device = device_of(RankIndex::new(local.rank), &builder.devices).clone();
                (own.min(ranks)..(own + 1).min(ranks), vec![device])
            }
        };
        if builder.budget.is_none() {
            check_memory(
                &layout,
                &traced,
                &devices,
                world.map(World::rank),
                &settings,
            )?;
        }
        let streamed = builder.budget.map(|budget| {
            let setup = StreamedSetup::of(&builder, budget, &layout, &traced, &settings);
            Arc::new(setup)
        });
        let source = builder.source_of_values();
        let of_replica = layout.rank_count();
        let abort = Abort::default();
        let setups = own.map(|rank| RankSetup {
            rank: RankIndex::new(rank),
            replica: rank / of_replica,
            place: RankIndex::new(rank % of_replica),
            layout: layout.clone(),
            table: builder.model.parameters().clone(),
            device: device_of(RankIndex::new(rank), &devices).clone(),
            settings: settings.clone(),
            progress: Arc::default(),
            abort: abort.clone(),
            streamed: streamed.clone(),
        });
        let shared = cores::threads(world, ranks)?;
        let threads = builder.threads_per_rank.unwrap_or(shared);
        let mut crew = Crew::start(
            (setups.collect(), &abort),
            &source,
            threads,
            builder.timeout,
            builder.links.as_deref(),
            world,
            builder.backups,
        )?;
        let compute = builder.trace.compute_dtype();
        let facts = Facts {
            plan: &builder.plan,
            trace: &traced,
            settings: &settings,
            training: Training {
                settings: &settings,
                table: builder.model.parameters(),
                micro_batches,
                loss_scale: builder.loss_scale,
                compute,
                frozen: Vec::new(),
            },
            schedule: &schedule,
            loss_scale: builder.loss_scale,
        };
        facts.compare(&mut crew)?;
        crew.call("materialize its parameters", |_, _| ())?;
        // Nobody trains before all can.
        crew.agree(None)?;
        let programs = Programs::new(
            builder.trace,
            layout,
            schedule,
            &settings,
            builder.loss_scale,
            builder.kept_programs,
        );
        Ok(Self {
            model: builder.model,
            programs,
            crew,
            settings,
            micro_batches,
            loss_scale: builder.loss_scale,
            condition: Condition::Sound,
            is_averaged: false,
            step: 0,
            round: 0,
            carries: Carries::default(),
            plan: builder.plan,
            calls: 0,
            changes: 0,
            compute,
            last_rates: None,
            checks_batches: builder.checks_batches,
            outputs: builder.outputs,
            repaired: Vec::new(),
            frozen: BTreeSet::new(),
            equal_rates: Some(0),
            passes: None,
            streamed,
            recovery: None,
        })
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the model, without its parameters.
    pub fn model(&self) -> &Deferred<M> {
        &self.model
    }

    /// Returns the schedule of a training step.
    pub fn schedule(&self) -> &ScheduleChoice {
        self.programs.choice()
    }

    /// Returns the seed.
    pub fn seed(&self) -> Seed {
        self.settings.seed
    }

    /// Returns the number of micro-batches of a batch that has enough samples, of all replicas.
    pub fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// Returns the settings that decide the losses of a training, by name: the optimizer with its groups, `clipping`,
    /// `gradient_sum`, `micro_batches`, `precision`, the parameters that are `frozen` now, and others. With equal settings,
    /// seed, model, batches and learning rates, the losses are equal on one machine, as far as functions and custom optimizers
    /// are. Later versions add names.
    pub fn run_settings(&self) -> BTreeMap<String, String> {
        let table = self.model.parameters();
        let all = table.iter().as_slice();
        let frozen = self.frozen.iter().map(|at| &all[*at].path);
        let training = Training {
            settings: &self.settings,
            table,
            micro_batches: self.micro_batches,
            loss_scale: self.loss_scale,
            compute: self.compute,
            frozen: frozen.collect(),
        };
        training.named()
    }

    /// Returns the learning rates of the last step. `None` before the first one, unless the rates of an earlier run were
    /// [given](Self::resume_learning_rates).
    pub fn last_learning_rates(&self) -> Option<StepRates> {
        match self.last_rates.as_ref()? {
            LastRates::Given(rates) => {
                let parameters = self.model.parameters().distinct();
                Some(rates.of_all(parameters.map(|parameter| &parameter.path)))
            }
            LastRates::Saved(rates) => Some(rates.clone()),
        }
    }

    /// Returns whether its optimizer keeps a state for each parameter, such as the moments of Adam.
    pub fn keeps_optimizer_state(&self) -> bool {
        let Some(optimizers) = &self.settings.optimizers else {
            return false;
        };
        let parameters = self.model.parameters().iter();
        let mut trained = parameters.filter(|parameter| parameter.trainable);
        trained.any(|parameter| {
            let optimizer = &*optimizers.of(&parameter.path).optimizer;
            OptimizerState::keeps_state(optimizer, parameter.shape.len())
        })
    }

    /// Returns whether it has an optimizer, and so can train.
    pub fn has_optimizer(&self) -> bool {
        self.settings.optimizers.is_some()
    }

    /// Returns whether the averages of the parameters are in their place, as within
    /// [`with_averages`](Self::with_averages).
    pub fn is_averaged(&self) -> bool {
        self.is_averaged
    }

    /// Returns the number of training steps done so far, those before a resume included.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Sets the number of training steps for which restored parameters were trained.
    pub fn resume_at(&mut self, step: u64) {
        self.change_driver(move |pipeline| pipeline.step = step);
    }

    /// Returns a carry without values, for a sequence of evaluations ([`evaluate_with`](Self::evaluate_with)).
    /// Several may exist at a time.
    pub fn carry(&mut self) -> Carry {
        self.carries.create()
    }

    /// Returns the loss scale of the next step; `None` if the loss is not scaled.
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.loss_scale
    }

    /// Resumes with the loss scale of an earlier run. Does nothing if the loss is not scaled, or has a
    /// fixed scale.
    pub fn resume_loss_scale(&mut self, factor: f64, steps: u64) {
        self.change_driver(move |pipeline| {
            let scale = pipeline.loss_scale;
            pipeline.loss_scale = scale.map(|scale| scale.resumed(factor, steps));
        });
    }

    /// Sets the learning rates of the last step of an earlier run, which the next save has if no step is done before.
    pub fn resume_learning_rates(&mut self, rates: StepRates) {
        self.change_driver(move |pipeline| {
            pipeline.last_rates = Some(LastRates::Saved(rates.clone()));
        });
    }

    /// Returns the dependencies and the costs of a step with batches like `example`, for the simulator
    /// and for [`auto`](crate::schedule::auto): its edges and ties, and the bytes of parameters,
    /// gradients and values of micro-batches, without optimizer state and transient memory of programs. With
    /// [replicas](Plan::replicas), the dependencies and the costs of one of them, without the sums that a rank holds
    /// in addition. Times are zero; set them from a measured step with [`Costs::with_times`].
    ///
    /// # Errors
    ///
    /// When the batch can't be split or traced.
    pub fn costs(&mut self, example: &B) -> Result<(Dependencies, Costs), PipelineError> {
        let parts = split_batch(example, self.micro_batches)?;
        self.programs.costs(&parts, &self.plan)
    }

    /// Runs code on every rank's thread, with its stages, and returns the results in the order of the
    /// ranks. In a [world](PipelineBuilder::world) of processes, it runs on the rank of this process alone. With
    /// [recovery](PipelineBuilder::recovery), it runs again after a loss, on what is the rank of this process then; a process
    /// that waits has none.
    ///
    /// # Errors
    ///
    /// When the code panics on a rank: the pipeline has then stopped.
    pub fn on_ranks<R: Send + 'static>(
        &mut self,
        call: impl Fn(RankIndex, &mut [Stage]) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>, PipelineError> {
        let call = Arc::new(call);
        self.recovering(CallKind::ReadsHere, move |pipeline| {
            pipeline.check_condition()?;
            let call = call.clone();
            let run = move |rank, stages: &mut [Stage]| call(rank, stages);
            pipeline.crew.call("run a call", run)
        })
    }

    /// Gives every process of a [world](PipelineBuilder::world) the values of all, in the order of the ranks; without one,
    /// returns the own value. As [`World::all_gather`], and with [recovery](PipelineBuilder::recovery) it continues without
    /// ranks that are lost: there are as many values as processes are left.
    ///
    /// # Errors
    ///
    /// When a rank has failed, or makes another call.
    pub fn all_gather<T>(&mut self, value: T) -> Result<Vec<T>, PipelineError>
    where
        T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
    {
        self.recovering(CallKind::Reads, move |pipeline| {
            let all = pipeline.crew.exchange(To::All, value.clone(), Vec::new())?;
            Ok(all.into_iter().map(|(value, _)| value).collect())
        })
    }

    pub(super) fn check_condition(&self) -> Result<(), PipelineError> {
        match self.condition {
            Condition::Sound => Ok(()),
            Condition::PartlyRestored => Err(PipelineError::Mixed),
            Condition::StateLost => Err(PipelineError::AwaitsRestore),
            Condition::Stopped => Err(PipelineError::Stopped),
        }
    }

    /// Returns the trained model on one device, as an ordinary Burn module. In a [world](PipelineBuilder::world) of
    /// processes, every process calls this and gets the whole model; see [`gather_on_first`](Self::gather_on_first).
    ///
    /// # Errors
    ///
    /// When a rank has failed, or the closure constructs another model than before.
    pub fn gather(&mut self, device: &Device) -> Result<M, PipelineError> {
        let values = self.values(To::All)?;
        self.construct(values, device)
    }

    /// Returns the trained model, as [`gather`](Self::gather) does, on the first process of a
    /// [world](PipelineBuilder::world); `None` on the others, which send their parameters and hold no others.
    ///
    /// # Errors
    ///
    /// As [`gather`](Self::gather).
    pub fn gather_on_first(&mut self, device: &Device) -> Result<Option<M>, PipelineError> {
        let values = self.values(To::First)?;
        let is_first = self.crew.own().is_none_or(|own| own.index() == 0);
        is_first.then(|| self.construct(values, device)).transpose()
    }

    /// Returns the parameters of all ranks.
    fn values(&mut self, to: To) -> Result<Values, PipelineError> {
        self.recovering(CallKind::Reads, move |pipeline| {
            let values = pipeline.values_now(to)?;
            if pipeline.recovery.is_some() {
                // So that nobody is a call ahead of more than one other.
                pipeline.crew.exchange(To::All, (), Vec::new())?;
            }
            Ok(values)
        })
    }

    fn values_now(&mut self, to: To) -> Result<Values, PipelineError> {
        let held = self.on_ranks(|_, stages| {
            // All replicas have the same values.
            let stages = stages.iter().filter(|stage| stage.is_of_first_replica());
            let values = stages.flat_map(|stage| stage.parameters().values());
            let values = values.map(|(path, value)| (path.clone(), value));
            values.collect::<Vec<_>>()
        })?;
        let (paths, values): (Vec<ParameterPath>, Vec<DynTensor>) =
            held.into_iter().flatten().unzip();
        let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
        let all = self.crew.exchange(to, paths, values)?;
        let pairs = all
            .into_iter()
            .flat_map(|(paths, values)| paths.into_iter().zip(values));
        Ok(pairs
            .map(|(path, value)| (ParameterPath::new(path), value))
            .collect())
    }

    fn construct(&self, values: Values, device: &Device) -> Result<M, PipelineError> {
        // Random values of the constructor that are not parameters are drawn from the same seed as on
        // the ranks.
        let values = values.constructed_by(self.model.replay(self.settings.seed));
        self.model
            .materialize(device, &values)
            .map_err(PipelineError::Gather)
    }
}

impl<M, B> fmt::Debug for Pipeline<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("stages", &self.plan.stages().len())
            .field("seed", &self.settings.seed)
            .field("schedule", &self.programs.choice())
            .field("micro_batches", &self.micro_batches)
            .field("steps", &self.step)
            .finish_non_exhaustive()
    }
}
