//! The handle that controls a pipeline.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::Device;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tinderbox_deferred::{Deferred, ParameterPath, Source, Values, random::Seed};
use tinderbox_fake::{DynTensor, Mode};

use crate::batch::Batch;
use crate::lists::ScheduleChoice;
use crate::runtime::driver::{Batches, Carry, Command, Driver, DriverState, Repaired};
use crate::runtime::learning_rates::{LastRates, StepRates};
use crate::runtime::loss_scale::LossScale;
use crate::runtime::ranks::{To, read, typed, untyped, written};
use crate::runtime::recovery::{CallLog, Rollback};
use crate::runtime::stage::Stage;
use crate::schedule::{Costs, Dependencies, RankIndex};
use crate::trace::Trace;
use crate::{PipelineError, Plan, StateError};

/// Why a reply has the kind that a call expects.
pub(super) const REPLY: &str = "a command has one kind of reply";

/// A model in training, with stages on ranks: threads of this process, or processes of a [`World`](tinderbox_world::World), each with one.
///
/// Dropping it stops and joins the ranks.
#[derive(derive_more::Debug)]
#[debug(
    "Pipeline {{ stages: {}, seed: {:?}, schedule: {}, micro_batches: {}, steps: {}, .. }}",
    driver.plan.stages().len(), driver.settings.seed, driver.programs.choice,
    driver.options.micro_batches, driver.state.step
)]
pub struct Pipeline<M, B> {
    pub(super) model: Deferred<M>,
    pub(super) trace: Trace<B>,
    pub(super) driver: Driver,
    /// What it continues with when other processes are lost.
    pub(super) recovery: Option<Box<CallRecovery<M, B>>>,
    /// In how many steps all learning rates were the same, up to when that is reported; as many once they were not.
    pub(super) equal_rates: u32,
}

/// What a pipeline repeats.
pub(super) enum Call<M, B> {
    Command(Command),
    /// Code of the caller, which makes calls itself.
    Repeatable(Box<Repeatable<M, B>>),
}

/// A call of [`Pipeline::repeatable`].
pub(super) type Repeatable<M, B> =
    dyn Fn(&mut Pipeline<M, B>) -> Result<(), PipelineError> + Send + Sync;

/// Recovers the calls of a pipeline: goes back to a version of its state, and makes the calls since then again.
pub(super) struct CallRecovery<M, B> {
    pub(super) rollback: Rollback,
    pub(super) log: CallLog<Call<M, B>>,
    /// Whether a call runs: its parts are not repeated by themselves.
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

    /// Returns the number of micro-batches of a batch that has enough samples, of all replicas.
    pub fn micro_batches(&self) -> usize {
        self.driver.options.micro_batches
    }

    /// Returns the settings that decide the losses of a training, by name: the optimizer with its groups, `clipping`,
    /// `gradient_sum`, `micro_batches`, `precision`, the parameters that are `frozen` now, and others. With equal settings,
    /// seed, model, batches and learning rates, the losses are equal on one machine, as far as functions and custom optimizers
    /// are. Later versions add names.
    pub fn run_settings(&self) -> BTreeMap<String, String> {
        self.driver.run_settings()
    }

    /// Returns the learning rates of the last step. `None` before the first one, unless the rates of an earlier run were
    /// [given](Self::resume_learning_rates).
    pub fn last_learning_rates(&self) -> Option<StepRates> {
        match self.driver.state.last_rates.as_ref()? {
            LastRates::Given(rates) => {
                let parameters = self.model.parameters().distinct();
                Some(rates.of_all(parameters.map(|parameter| &parameter.path)))
            }
            LastRates::Saved(rates) => Some(rates.clone()),
        }
    }

    /// Returns whether its optimizer keeps a state for each parameter, such as the moments of Adam.
    pub fn keeps_optimizer_state(&self) -> bool {
        self.driver.keeps_optimizer_state()
    }

    /// Returns whether it has an optimizer, and so can train.
    pub fn has_optimizer(&self) -> bool {
        self.driver.settings.optimizers.is_some()
    }

    /// Returns whether the averages of the parameters are in their place, as within
    /// [`with_averages`](Self::with_averages).
    pub fn is_averaged(&self) -> bool {
        self.driver.state.is_averaged
    }

    /// Returns the number of training steps done so far, those before a resume included.
    pub fn steps(&self) -> u64 {
        self.driver.state.step
    }

    /// Sets the number of training steps for which restored parameters were trained.
    pub fn resume_at(&mut self, step: u64) {
        self.change(|state| state.step = step);
    }

    /// Returns a carry without values, for a sequence of evaluations ([`evaluate_with`](Self::evaluate_with)).
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

    /// Sets the learning rates of the last step of an earlier run, which the next save has if no step is done before.
    pub fn resume_learning_rates(&mut self, rates: StepRates) {
        self.change(|state| state.last_rates = Some(LastRates::Saved(rates)));
    }

    /// Changes what the driver has, and can't fail.
    fn change(&mut self, change: impl FnOnce(&mut DriverState)) {
        let mut state = self.driver.state.clone();
        change(&mut state);
        let resumed = self.make::<()>(Command::Resume(state));
        resumed.expect("it sends nothing");
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
        let batches = self.traced(vec![example.clone()]);
        let parts = batches.split(Mode::Training, &[self.driver.options.micro_batches])?;
        self.driver.programs.costs(&parts)
    }

    /// Runs code on every rank's thread, with its stages, and returns the results in the order of the
    /// ranks. In a [world](crate::PipelineBuilder::world) of processes, it runs on the rank of this process alone. With
    /// [recovery](crate::PipelineBuilder::recovery), it runs again after a loss, on what is the rank of this process then; a process
    /// that waits has none.
    ///
    /// # Errors
    ///
    /// When the code panics on a rank: the pipeline has then stopped.
    pub fn on_ranks<R: Send + 'static>(
        &mut self,
        call: impl Fn(RankIndex, &mut [Stage]) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>, PipelineError> {
        Ok(typed(self.make(Command::OnRanks(untyped(call)))?))
    }

    /// Gives every process of a [world](crate::PipelineBuilder::world) the values of all, in the order of the ranks; without one,
    /// returns the own value. As [`World::all_gather`](tinderbox_world::World::all_gather), and with [recovery](crate::PipelineBuilder::recovery) it continues without
    /// ranks that are lost: there are as many values as processes are left.
    ///
    /// # Errors
    ///
    /// When a rank has failed, or makes another call.
    pub fn all_gather<T>(&mut self, value: T) -> Result<Vec<T>, PipelineError>
    where
        T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
    {
        let Some(rank) = self.driver.ranks.own() else {
            self.driver.ranks.wait_for_all()?;
            return Ok(vec![value]);
        };
        let all: Vec<Vec<u8>> = self.make(Command::Gather(written(rank, &value)?))?;
        let all = all.iter().enumerate();
        Ok(all
            .map(|(rank, value)| read(rank, value))
            .collect::<Result<_, _>>()?)
    }

    /// Returns the trained model on one device, as an ordinary Burn module. In a [world](crate::PipelineBuilder::world) of
    /// processes, every process calls this and gets the whole model; see [`gather_on_first`](Self::gather_on_first).
    ///
    /// # Errors
    ///
    /// When a rank has failed, or the closure constructs another model than before.
    pub fn gather(&mut self, device: &Device) -> Result<M, PipelineError> {
        let values = self.values(To::All, None)?;
        Ok(self.construct(values, device)?)
    }

    /// Returns the trained model, as [`gather`](Self::gather) does, on the first process of a
    /// [world](crate::PipelineBuilder::world); `None` on the others, which send their parameters and hold no others.
    ///
    /// # Errors
    ///
    /// As [`gather`](Self::gather).
    pub fn gather_on_first(&mut self, device: &Device) -> Result<Option<M>, PipelineError> {
        let values = self.values(To::First, None)?;
        let is_first = self.driver.ranks.own().is_none_or(|own| own.index() == 0);
        let first = is_first.then(|| self.construct(values, device));
        Ok(first.transpose()?)
    }

    /// The parameters of all ranks, or one of them that is no clone.
    pub(super) fn values(
        &mut self,
        to: To,
        only: Option<ParameterPath>,
    ) -> Result<Vec<(ParameterPath, DynTensor)>, PipelineError> {
        self.make(Command::Values { to, only })
    }

    fn construct(
        &self,
        values: Vec<(ParameterPath, DynTensor)>,
        device: &Device,
    ) -> Result<M, StateError> {
        let values: Values = values.into_iter().collect();
        // Random values of the constructor that are not parameters are drawn from the same seed as on
        // the ranks.
        let values = values.constructed_by(self.model.replay(self.driver.settings.seed));
        self.model
            .materialize(device, &values)
            .map_err(StateError::Gather)
    }

    /// Returns the parameters that [checks of memory](crate::PipelineBuilder::check_memory) have repaired so far.
    pub fn repaired(&self) -> &[Repaired] {
        &self.driver.repaired
    }
}
