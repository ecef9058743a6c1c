//! The handle that controls a pipeline.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tinderbox_deferred::{Deferred, Source, Values, random::Seed};
use tinderbox_fake::Mode;

use crate::error::Result;
use crate::runtime::driver::{Batches, Command, Driver, DriverState, NamedValues};
use crate::runtime::ranks::{To, read, typed, untyped, written};
use crate::runtime::recovery::{CallLog, Rollback};
use crate::schedule::{Costs, Dependencies, RankIndex};
use crate::{
    Batch, Carry, LossScale, Plan, Repaired, ScheduleChoice, Stage, StateError, StepRates, Trace,
};

/// A model with stages on ranks. The ranks are threads of this process, or processes of a
/// [`World`](tinderbox_world::World), each with one rank.
///
/// Dropping it stops and joins the ranks.
#[derive(derive_more::Debug)]
#[debug(
    "Pipeline {{ stages: {}, seed: {:?}, schedule: {}, micro_batches: {}, steps: {}, .. }}",
    driver.plan.stages.len(), driver.settings.seed, driver.programs.choice,
    driver.options.micro_batches, driver.state.step
)]
pub struct Pipeline<M, B> {
    pub(super) model: Deferred<M>,
    pub(super) trace: Trace<B>,
    pub(super) driver: Driver,
    /// The state from which the pipeline continues when other processes are lost.
    pub(super) recovery: Option<Box<CallRecovery<M, B>>>,
    /// The number of steps whose learning rates were all the same, up to the number at which that is reported. Set to that
    /// number after a step whose rates differ.
    pub(super) equal_rates: u32,
}

/// A call that a pipeline can repeat.
pub(super) enum Call<M, B> {
    Command(Command),
    /// Code of the caller, which makes calls.
    Repeatable(Box<Repeatable<M, B>>),
}

/// A call of [`Pipeline::repeatable`].
pub(super) type Repeatable<M, B> = dyn Fn(&mut Pipeline<M, B>) -> Result<()> + Send + Sync;

/// Recovers the calls of a pipeline: returns to a version of its state, and repeats the calls since then.
pub(super) struct CallRecovery<M, B> {
    pub(super) rollback: Rollback,
    pub(super) log: CallLog<Call<M, B>>,
    /// Whether a call runs. Calls within it are not repeated by themselves.
    pub(super) is_running: bool,
}

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.driver.plan
    }

    /// Returns the model, without its parameters.
    pub fn model(&self) -> &Deferred<M> {
        &self.model
    }

    /// Returns the schedule of a training step.
    pub fn schedule(&self) -> &ScheduleChoice {
        &self.driver.programs.choice
    }

    /// Returns the seed.
    pub fn seed(&self) -> Seed {
        self.driver.settings.seed
    }

    /// Returns the number of micro-batches of a batch that has enough samples, over all replicas.
    pub fn micro_batches(&self) -> usize {
        self.driver.options.micro_batches
    }

    /// Returns the settings that decide the losses of a training, by name: the optimizer with its groups, `clipping`,
    /// `gradient_sum`, `micro_batches`, `precision`, the parameters that are `frozen` now, and others. With equal settings,
    /// seed, model, batches and learning rates, the losses are equal on one machine, if functions and custom optimizers are
    /// equal too. Later versions add names.
    pub fn run_settings(&self) -> BTreeMap<String, String> {
        self.driver.run_settings()
    }

    /// Returns the learning rates of the last step. `None` before the first one, unless the rates of an earlier run were
    /// [given](Self::resume_learning_rates).
    pub fn last_learning_rates(&self) -> Option<StepRates> {
        self.driver.state.last_rates.as_deref().cloned()
    }

    /// Returns whether the optimizer keeps a state for each parameter, for example the moments of Adam.
    pub fn keeps_optimizer_state(&self) -> bool {
        self.driver.keeps_optimizer_state()
    }

    /// Returns whether the pipeline has an optimizer. Without one it can't train.
    pub fn has_optimizer(&self) -> bool {
        self.driver.settings.optimizers.is_some()
    }

    /// Returns whether the averages replace the parameters, as within [`with_averages`](Self::with_averages).
    pub fn is_averaged(&self) -> bool {
        self.driver.state.is_averaged
    }

    /// Returns the number of completed training steps, including the steps before a resume.
    pub fn steps(&self) -> u64 {
        self.driver.state.step
    }

    /// Sets the number of training steps for which restored parameters were trained.
    pub fn resume_at(&mut self, step: u64) {
        self.change(|state| state.step = step);
    }

    /// Returns a carry without values, for a sequence of evaluations ([`evaluate_carried`](Self::evaluate_carried)).
    /// Several may exist at a time.
    pub fn carry(&mut self) -> Carry {
        self.driver.carries.create()
    }

    /// Returns the loss scale of the next step; `None` if the loss is not scaled.
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.driver.state.loss_scale
    }

    /// Resumes with the loss scale of an earlier run. Does nothing if the loss is not scaled, or has a
    /// fixed scale.
    pub fn resume_loss_scale(&mut self, factor: f64, steps: u64) {
        self.change(|state| {
            let scale = state.loss_scale;
            state.loss_scale = scale.map(|scale| scale.resumed(factor, steps));
        });
    }

    /// Sets the learning rates of the last step of an earlier run. A save before the next step has these rates.
    pub fn resume_learning_rates(&mut self, rates: StepRates) {
        self.change(|state| state.last_rates = Some(Arc::new(rates)));
    }

    /// Changes the state of the driver.
    fn change(&mut self, change: impl FnOnce(&mut DriverState)) {
        let mut state = self.driver.state.clone();
        change(&mut state);
        let resumed = self.make::<()>(Command::Resume(state));
        resumed.expect("it sends nothing");
    }

    /// Returns the dependencies and the costs of a step with batches like `example`, for the simulator
    /// and for [`auto`](crate::schedule::auto): its edges and ties, and the bytes of parameters,
    /// gradients and values of micro-batches, without optimizer state and transient memory of programs. With
    /// [replicas](Plan::replicas), the dependencies and the costs are of one replica, without the sums that a rank holds
    /// in addition. Times are zero; set them from a measured step with [`Costs::with_times`].
    ///
    /// # Errors
    ///
    /// When the batch can't be split or traced.
    pub fn costs(&mut self, example: &B) -> Result<(Dependencies, Costs)> {
        let batches = self.traced(vec![example.clone()]);
        let parts = batches.split(Mode::Training, &[self.driver.options.micro_batches])?;
        self.driver.programs.costs(&parts)
    }

    /// Runs code on every rank's thread, with its stages, and returns the results in the order of the ranks. In a
    /// [world](crate::PipelineBuilder::world) of processes, it runs on the rank of this process alone. With
    /// [recovery](crate::PipelineBuilder::recovery), it runs again after a loss, on the rank that this process has then. A
    /// spare process has no rank.
    ///
    /// # Errors
    ///
    /// When the code panics on a rank. The pipeline has then stopped.
    pub fn on_ranks<R: Send + 'static>(
        &mut self,
        call: impl Fn(RankIndex, &mut [Stage]) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>> {
        Ok(typed(self.make(Command::OnRanks(untyped(call)))?))
    }

    /// Returns the values of all processes of a [world](crate::PipelineBuilder::world), in the order of the ranks. Without a
    /// world, returns this value alone. In contrast to [`World::all_gather`](tinderbox_world::World::all_gather), with
    /// [recovery](crate::PipelineBuilder::recovery) it continues without lost processes, and returns the values of the
    /// remaining ones.
    ///
    /// # Errors
    ///
    /// When a rank has failed, or makes another call.
    pub fn all_gather<T>(&mut self, value: T) -> Result<Vec<T>>
    where
        T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
    {
        let Some(rank) = self.driver.ranks.own() else {
            self.driver.ranks.wait_for_all()?;
            return Ok(vec![value]);
        };
        let all: Vec<Vec<u8>> = self.make(Command::Gather(written(rank, &value)?))?;
        let all = all.iter().enumerate().map(|(rank, of)| read(rank, of));
        Ok(all.collect::<Result<_, _>>()?)
    }

    /// Returns the trained model on one device, as an ordinary Burn module. In a [world](crate::PipelineBuilder::world) of
    /// processes, every process calls this and gets the whole model; see [`gather_on_first`](Self::gather_on_first).
    ///
    /// # Errors
    ///
    /// When a rank has failed, or the closure constructs another model than before.
    pub fn gather(&mut self, device: &Device) -> Result<M> {
        let values = self.make(Command::Values(To::All, None))?;
        self.construct(values, device)
    }

    /// Returns the trained model, as [`gather`](Self::gather) does, on the first process of a
    /// [world](crate::PipelineBuilder::world). Returns `None` on the other processes, which only send their parameters.
    ///
    /// # Errors
    ///
    /// As [`gather`](Self::gather).
    pub fn gather_on_first(&mut self, device: &Device) -> Result<Option<M>> {
        let values = self.make(Command::Values(To::First, None))?;
        let is_first = self.driver.ranks.own().is_none_or(|own| own.index() == 0);
        let first = is_first.then(|| self.construct(values, device));
        first.transpose()
    }

    fn construct(&self, values: NamedValues, device: &Device) -> Result<M> {
        let values: Values = values.into_iter().collect();
        // Random values of the constructor that are not parameters are drawn from the same seed as on
        // the ranks.
        let values = values.constructed_by(self.model.initializer(self.driver.settings.seed));
        let module = self.model.materialize(device, &values);
        Ok(module.map_err(StateError::Gather)?)
    }

    /// Returns the parameters that the [detection of damage](crate::PipelineBuilder::detect_damage) has repaired so far.
    pub fn repaired(&self) -> &[Repaired] {
        &self.driver.repaired
    }
}
