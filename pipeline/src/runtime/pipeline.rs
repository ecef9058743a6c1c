//! The handle that controls a pipeline.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tinderbox_deferred::{
    Deferred, Observed, ParameterPath, SharedId, Source, Values, check_device, random::Seed,
};
use tinderbox_fake::{DynTensor, Mode};
use tinderbox_world::World;

use super::builder::PipelineBuilder;
use super::carry::{Carries, Carry};
use super::changed::Repaired;
use super::clip::Clipping;
use super::cores;
use super::crew::Crew;
use super::facts::Facts;
use super::loss_scale::LossScale;
use super::memory::{check_memory, device_of};
use super::optimizer::OptimizerState;
use super::output::OutputsOn;
use super::programs::Programs;
use super::rank::RankSetup;
use super::recovery::{CallKind, RecoveryState};
use super::remote::To;
use super::settings::Settings;
use super::stage::Stage;
use crate::batch::{Batch, split_batch};
use crate::cut::Cutting;
use crate::lists::ScheduleChoice;
use crate::schedule::{Costs, Dependencies, RankIndex, verify};
use crate::sum::{GradientSum, Groups};
use crate::trace::Trace;
use crate::{PipelineError, Plan, TraceError};

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
    pub(super) checks_batches: bool,
    pub(super) outputs: OutputsOn,
    pub(super) repaired: Vec<Repaired>,
    /// The parameters that do not train now, by position in the table.
    pub(super) frozen: BTreeSet<usize>,
    /// What it goes on with when other processes are lost.
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
        check_settings(&builder)?;
        let table = builder.model.parameters().clone();
        let replicas = builder.plan.replica_count();
        let sum = builder.sum.unwrap_or(GradientSum::of_replicas(replicas));
        let settings = Arc::new(Settings {
            optimizers: builder.optimizers(),
            replicas,
            sum,
            ..builder.settings
        });
        // The trace may be of another model, or of another forward of the same model.
        if let Some(difference) = builder.trace.constructor_difference(builder.model.graph()) {
            return Err(PipelineError::OtherModel { difference });
        }
        let layout = builder.plan.layout(&table)?;
        builder.plan.layout(builder.trace.parameters())?;
        let traced = builder.trace.example_program()?;
        builder.plan.check_program(&traced)?;
        let layout = Arc::new(match traced.carried().is_empty() {
            true => layout,
            false => {
                let carried = Cutting::new(&traced, &layout)?.carried(&traced);
                layout.with_carried(carried)
            }
        });
        if let Some(state) = traced.updates().keys().next()
            && replicas > 1
        {
            let path = table.iter().as_slice()[*state].path.clone();
            return Err(PipelineError::RunningState { path });
        }
        let schedule = builder.schedule;
        let schedule = schedule.unwrap_or_else(|| builder.plan.schedule());
        let written = match &schedule {
            ScheduleChoice::Written(schedule) => Some(schedule.micro_batches * replicas),
            ScheduleChoice::Named(_) | ScheduleChoice::Planned(_) => None,
        };
        let planned = builder.plan.file().step.micro_batches.max(1);
        let micro_batches = builder.micro_batches.or(written).unwrap_or(planned);
        if micro_batches < replicas {
            return Err(PipelineError::IdleReplicas {
                replicas,
                micro_batches,
            });
        }
        if settings.optimizers.is_some() {
            // A schedule that does not fit is refused before parameters are materialized. The
            // dependencies of its ranks are known only when a batch is traced.
            let groups = Groups {
                micro_batches,
                groups: sum.groups(),
            };
            let counts: BTreeSet<usize> = match &schedule {
                ScheduleChoice::Written(written) => [written.micro_batches].into(),
                _ => (0..replicas)
                    .map(|replica| groups.of_replica(replica, replicas).len())
                    .collect(),
            };
            let alone = Dependencies::new(layout.ranks.len(), [], []);
            for count in counts {
                let lists = schedule.compute(&layout.ranks, count, &alone)?;
                verify(&lists, &alone).map_err(PipelineError::Schedule)?;
            }
        }
        let ranks = builder.plan.world_size();
        let world = builder.world.as_ref();
        let processes = world.map_or(ranks, World::size);
        // Those beyond the plan's wait until another one is lost.
        if processes < ranks || (processes > ranks && builder.backups.is_none()) {
            return Err(PipelineError::WorldSize { ranks, processes });
        }
        // The ranks of this process, and their devices.
        let (own, devices) = match world {
            None => (0..ranks, builder.devices),
            Some(world) => {
                let (own, local) = (world.rank().index(), world.local());
                let device = device_of(RankIndex::new(local.rank), &builder.devices).clone();
                (own.min(ranks)..(own + 1).min(ranks), vec![device])
            }
        };
        check_memory(
            &layout,
            &traced,
            &devices,
            world.map(World::rank),
            &settings,
        )?;
        let source = builder
            .source
            .unwrap_or_else(|| Arc::new(builder.model.replay(settings.seed)));
        let source = match builder.observer {
            Some(observer) => Arc::new(Observed::new(source, observer)),
            None => source,
        };
        let of_replica = layout.rank_count();
        let setups = own.map(|rank| RankSetup {
            rank: RankIndex::new(rank),
            replica: rank / of_replica,
            place: RankIndex::new(rank % of_replica),
            layout: layout.clone(),
            table: table.clone(),
            device: device_of(RankIndex::new(rank), &devices).clone(),
            settings: settings.clone(),
            progress: Arc::default(),
        });
        let shared = cores::threads(world, ranks)?;
        let threads = builder.threads_per_rank.unwrap_or(shared);
        let mut crew = Crew::start(
            setups.collect(),
            &source,
            threads,
            builder.timeout,
            builder.links.as_deref(),
            world,
            builder.backups,
        )?;
        let facts = Facts {
            plan: &builder.plan,
            trace: &traced,
            settings: &settings,
            schedule: &schedule,
            micro_batches,
            loss_scale: builder.loss_scale,
        };
        facts.compare(&mut crew)?;
        crew.call("materialize its parameters", |_, _| ())?;
        // Nobody trains before all can.
        crew.agree(None)?;
        let loss_scale = builder.loss_scale.map(|scale| scale.factor());
        let global_norm = settings.needs_norms(loss_scale);
        let programs = Programs::new(
            builder.trace,
            layout,
            schedule,
            &settings,
            global_norm,
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
            checks_batches: builder.checks_batches,
            outputs: builder.outputs,
            repaired: Vec::new(),
            frozen: BTreeSet::new(),
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

    /// Returns the dependencies and the costs of a step with batches like `example`, for the simulator
    /// and for [`auto`](crate::schedule::auto): its edges and ties, and the bytes of parameters,
    /// gradients and values of micro-batches, without optimizer state and transient memory of programs. With
    /// [replicas](Plan::replicas), those of one of them, without the sums that a rank holds in addition.
    /// Times are zero; set them from a measured step with [`Costs::with_times`].
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
    /// returns the own value. As [`World::all_gather`], and with [recovery](PipelineBuilder::recovery) it goes on without
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

/// Checks that gradients can be summed in an order that does not depend on the number of replicas.
fn check_replicas(replicas: usize, sum: Option<GradientSum>) -> Result<(), PipelineError> {
    if !replicas.is_power_of_two() {
        return Err(PipelineError::Replicas { replicas });
    }
    let sum = sum.unwrap_or(GradientSum::of_replicas(replicas));
    let groups = sum.groups();
    match groups.is_power_of_two() && groups.is_multiple_of(replicas) {
        true => Ok(()),
        false => Err(PipelineError::Sum { sum, replicas }),
    }
}

/// Checks settings that do not depend on the plan, and that the model and forward have not changed
/// since they were recorded.
fn check_settings<M: Module + Sync + 'static, B: Batch>(
    builder: &PipelineBuilder<M, B>,
) -> Result<(), PipelineError> {
    if builder.devices.is_empty() {
        return Err(PipelineError::NoDevices);
    }
    if builder.micro_batches == Some(0) {
        return Err(PipelineError::NoMicroBatches);
    }
    check_replicas(builder.plan.replica_count(), builder.sum)?;
    if builder.threads_per_rank == Some(0) {
        return Err(PipelineError::NoThreads);
    }
    if builder.has_groups_alone() {
        return Err(PipelineError::NoOptimizer);
    }
    let optimizers = builder.optimizers();
    if let Some(optimizers) = &optimizers {
        optimizers.check(builder.model.parameters())?;
        if builder.settings.clipping.is_some() && optimizers.clips() {
            return Err(PipelineError::TwoClippings);
        }
    }
    if let Some(decay) = builder.settings.average_decay
        && !(0.0..1.0).contains(&decay)
    {
        return Err(PipelineError::AverageDecay { decay });
    }
    if let Some(Clipping::GlobalNorm(max)) = builder.settings.clipping
        && !(max > 0.0 && max.is_finite())
    {
        return Err(PipelineError::Clip { max });
    }
    for device in &builder.devices {
        check_device(device)?;
    }
    if optimizers.is_some() && builder.trace.mode() == Mode::Inference {
        return Err(PipelineError::ForwardTrace);
    }
    if let (Some(shared), true) = (builder.model.shared_id(), optimizers.is_some()) {
        let SharedId { first, second } = shared.clone();
        return Err(PipelineError::Clones { first, second });
    }
    let ranks = builder.model.parameters().iter();
    let mut ranks = ranks.map(|parameter| (&parameter.path, parameter.shape.len()));
    if let Some((path, rank)) = ranks.find(|(_, rank)| !(1..=8).contains(rank)) {
        let path = path.clone();
        return Err(PipelineError::ParameterRank { path, rank });
    }
    // The recorded model must be the one that is trained and that a later construction gathers.
    if builder.is_restart {
        return Ok(());
    }
    let unstable = |source| PipelineError::from(TraceError::Constructor { source });
    builder.model.check_stable().map_err(unstable)?;
    Ok(builder.trace.check_stable()?)
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
