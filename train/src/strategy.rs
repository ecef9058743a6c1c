//! The learning strategy with which burn-train trains a pipeline.

use std::any::{type_name, type_name_of_val};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use burn::data::dataloader::DataLoader;
use burn::optim::SgdConfig;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::tensor::Device;
use burn_train::train::WorkerFailure;
use burn_train::{
    EventProcessorTraining, InferenceStep, Interrupter, Learner, LearnerEvent, LearnerModel,
    LearningResult, SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainLoader,
    TrainStep, TrainingComponents, TrainingError, TrainingItem, TrainingStrategy, ValidLoader,
};
use derive_more::Debug;
use serde_json::json;
use tinderbox::checkpoint::RunProgress;
use tinderbox::world::with_causes;
use tinderbox::{Batch, Checkpoints, Pipeline};

use crate::metrics::{Kind, StepMetric, Steps};
use crate::{EndSignals, Epochs, StepItem, StrategyError};

/// The name of the number of items of an epoch in a checkpoint.
const ITEMS: &str = "items_per_epoch";
/// The name of the number of validated epochs in a checkpoint.
const VALIDATED: &str = "validated_epochs";

type Input<M> = <M as TrainStep>::Input;
type Loader<M> = Epochs<Input<M>>;

/// Returns a learner and a strategy with which burn-train trains a pipeline. The pipeline updates its parameters with its own
/// optimizer, at the rate of the scheduler. The batch of the model's `TrainStep` and `InferenceStep` is the batch of the
/// pipeline.
///
/// burn-train calls neither the steps of the model nor [`TrainStep::optimize`].
pub fn learner<M>(
    pipeline: Pipeline<M, Input<M>>,
    scheduler: impl Into<ModuleLrScheduler>,
) -> (Learner<M>, PipelineStrategy<M, Input<M>>)
where
    M: LearnerModel + Sync,
    Input<M>: Batch,
{
    learner_with(pipeline, scheduler, |batch| batch)
}

/// Does the same as [`learner`], for a data loader whose batches `convert` turns into batches of the pipeline: for example
/// batches of a type of another crate, which can't implement [`Batch`].
pub fn learner_with<M, B>(
    pipeline: Pipeline<M, B>,
    scheduler: impl Into<ModuleLrScheduler>,
    convert: impl Fn(Input<M>) -> B + 'static,
) -> (Learner<M>, PipelineStrategy<M, B>)
where
    M: LearnerModel + Sync,
    B: Batch,
{
    // burn-train needs an optimizer, which nothing uses.
    let model = pipeline.model().module().clone();
    let may_have_groups = type_name_of_val(&scheduler) == type_name::<ModuleLrScheduler>();
    let learner = Learner::new(model, SgdConfig::new().init(), scheduler);
    let strategy = PipelineStrategy {
        pipeline: Arc::new(Mutex::new(pipeline)),
        convert: Arc::new(convert),
        may_have_groups,
        checkpoints: None,
        gather: Some(Device::flex()),
        signals: None,
        steps: Steps::default(),
    };
    (learner, strategy)
}

/// A strategy that trains a pipeline under `SupervisedTraining` of burn-train, from [`learner`].
///
/// Clones share the pipeline.
#[derive(Clone, Debug)]
#[debug("PipelineStrategy {{ checkpoints: {checkpoints:?}, gather: {gather:?}, .. }}")]
#[must_use]
pub struct PipelineStrategy<M: LearnerModel, B> {
    pipeline: Arc<Mutex<Pipeline<M, B>>>,
    convert: Arc<dyn Fn(Input<M>) -> B>,
    /// Whether the scheduler may have groups. A pipeline warns if groups do not change the rate of any parameter.
    may_have_groups: bool,
    checkpoints: Option<Arc<Checkpoints>>,
    /// The device of the model that burn-train returns; `None` to leave the parameters on the ranks.
    gather: Option<Device>,
    signals: Option<Arc<EndSignals>>,
    steps: Steps,
}

impl<M: LearnerModel + Sync, B: Batch> PipelineStrategy<M, B> {
    /// Resumes from the newest checkpoint, if there is one, and saves: after the steps that [`Checkpoints::every`] sets, or
    /// else after each epoch, and always when the training is interrupted or ends.
    ///
    /// A resumed run continues as if it had not stopped: with the next batch of the interrupted epoch, or with its validation,
    /// at the rate that the scheduler would have had. It needs the same data loaders with the same seeds, and the same
    /// scheduler. The state of burn-train itself starts again: the metrics of the interrupted epoch cover only its rest, and
    /// early stopping counts from there.
    pub fn checkpoints(mut self, checkpoints: Checkpoints) -> Self {
        self.checkpoints = Some(Arc::new(checkpoints));
        self
    }

    /// Interrupts the training after the step or the validation batch in which one of these signals arrives. The training is
    /// then saved to the [checkpoints](Self::checkpoints), and `LearningResult::interrupted` has the name of the signal as its
    /// reason. After the training, each of the signals ends the program.
    pub fn end_on(mut self, signals: EndSignals) -> Self {
        self.signals = Some(Arc::new(signals));
        self
    }

    /// Sets the device of the model that burn-train returns. The default is the CPU.
    pub fn gather_on(mut self, device: Device) -> Self {
        self.gather = Some(device);
        self
    }

    /// Leaves the trained parameters on the ranks: burn-train returns the model without values. For models that do not fit one
    /// device.
    pub fn without_gather(mut self) -> Self {
        self.gather = None;
        self
    }

    /// Locks and returns the pipeline. A training waits until the lock is dropped, so drop it before a training on the same
    /// thread. During a training, this waits for its end.
    pub fn pipeline(&self) -> MutexGuard<'_, Pipeline<M, B>> {
        // After a panic, the pipeline itself reports whether it has stopped.
        self.pipeline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the metric of the norm of all gradients of a step, before they are clipped.
    pub fn gradient_norm(&self) -> StepMetric {
        self.steps.metric(Kind::GradientNorm)
    }

    /// Returns the metric of the percentage of time in which ranks wait for each other, including the bubble of the schedule.
    /// Only available if the pipeline [measures](tinderbox::pipeline::PipelineBuilder::measure).
    pub fn idle_share(&self) -> StepMetric {
        self.steps.metric(Kind::IdleShare)
    }

    /// Returns the metric of the most bytes that a rank holds during a step: parameters, gradients, and values of
    /// micro-batches. The text lists the ranks; the number is the largest. Only available if the pipeline
    /// [measures](tinderbox::pipeline::PipelineBuilder::measure).
    pub fn held_bytes(&self) -> StepMetric {
        self.steps.metric(Kind::PeakBytes)
    }

    /// Returns the metric of the model FLOPs utilization: the floating-point operations of the model's products in a step, as a
    /// percentage of the operations that all ranks can do in the same time at the rate of the machine. Repeated operations of a
    /// recomputation do not count. Each micro-batch counts as the traced one. Only available if the machine of the plan was
    /// [calibrated](tinderbox::pipeline::calibrate()).
    pub fn flop_utilization(&self) -> StepMetric {
        self.steps.metric(Kind::FlopUtilization)
    }
}

impl<M, B> From<PipelineStrategy<M, B>> for TrainingStrategy<M>
where
    M: LearnerModel + TrainStep<Output: StepItem> + Sync,
    M: InferenceStep<Input = Input<M>, Output: StepItem>,
    B: Batch,
{
    fn from(strategy: PipelineStrategy<M, B>) -> Self {
        Self::Custom(Arc::new(strategy))
    }
}

impl<M, B> SupervisedLearningStrategy<M> for PipelineStrategy<M, B>
where
    M: LearnerModel + TrainStep<Output: StepItem> + Sync,
    M: InferenceStep<Input = Input<M>, Output: StepItem>,
    B: Batch,
{
    /// Does the same as the method of the trait, which fails for a model without values.
    fn train(
        &self,
        learner: Learner<M>,
        train: TrainLoader<M>,
        valid: ValidLoader<M>,
        mut components: TrainingComponents<M>,
    ) -> LearningResult<M> {
        let interrupter = components.interrupter.clone();
        let summary = components.summary.clone();
        let placeholder = learner.model();
        let items = train.num_items() as u64;
        let begin = Run::resume(self, &components, items).unwrap_or_else(|error| {
            fail(&interrupter, error);
            Begin::default()
        });
        let start = LearnerEvent::Start {
            total_epochs: components.num_epochs,
            // Epochs count from 1.
            starting_epoch: begin.validated + 1,
            label: components.label.clone(),
        };
        interrupter.fail_on_error(components.event_processor.process_train(start));
        let (model, mut events) = Run::train(self, components, learner, [train, valid], begin);
        let summary = summary.and_then(|summary| summary.init().ok());
        interrupter.fail_on_error(events.process_train(LearnerEvent::End(summary)));
        interrupter.fail_on_error(events.flush());
        LearningResult {
            model: model.map_or(placeholder, |model| model.valid()),
            renderer: events.renderer(),
            interrupted: interrupter.interruption(),
            error: interrupter.error(),
        }
    }

    fn fit(
        &self,
        components: TrainingComponents<M>,
        learner: Learner<M>,
        train: TrainLoader<M>,
        valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let placeholder = learner.model();
        let validated = starting_epoch.saturating_sub(1);
        let begin = Begin {
            position: validated as u64 * train.num_items() as u64,
            validated,
            step: 0,
        };
        let (model, events) = Run::train(self, components, learner, [train, valid], begin);
        (model.unwrap_or(placeholder), events)
    }
}

/// The place of a training in its run.
#[derive(Clone, Copy, Default)]
struct Begin {
    /// The position in the training data.
    position: u64,
    /// The number of validated epochs.
    validated: usize,
    /// The number of steps of the run so far.
    step: u64,
}

/// The state of a training.
struct Run<'a, M: LearnerModel, B> {
    strategy: &'a PipelineStrategy<M, B>,
    pipeline: &'a mut Pipeline<M, B>,
    learner: Learner<M>,
    events: &'a mut SupervisedTrainingEventProcessor<M>,
    interrupter: &'a Interrupter,
    /// The number of batches of a step.
    accumulated: usize,
    /// The current place.
    at: Begin,
    /// The number of items of an epoch.
    items: usize,
    /// The step of the newest checkpoint.
    saved_step: u64,
}

impl<M, B> Run<'_, M, B>
where
    M: LearnerModel + TrainStep<Output: StepItem> + Sync,
    M: InferenceStep<Input = Input<M>, Output: StepItem>,
    B: Batch,
{
    /// Restores the newest checkpoint, and returns where the run continues.
    fn resume(
        strategy: &PipelineStrategy<M, B>,
        components: &TrainingComponents<M>,
        found: u64,
    ) -> Result<Begin, StrategyError> {
        if components.checkpoint.is_some() || components.checkpointer.is_some() {
            return Err(StrategyError::WholeModel);
        }
        let Some(checkpoints) = &strategy.checkpoints else {
            return Ok(Begin::default());
        };
        let Some(resumed) = checkpoints.resume(&mut *strategy.pipeline())? else {
            return Ok(Begin::default());
        };
        let number = |name| resumed.metadata[name].as_u64();
        let (Some(saved), Some(validated)) = (number(ITEMS), number(VALIDATED)) else {
            return Err(StrategyError::OtherLoop { path: resumed.dir });
        };
        if saved != found {
            return Err(StrategyError::Items { saved, found });
        }
        Ok(Begin {
            position: resumed.data_position,
            validated: validated as usize,
            step: resumed.step,
        })
    }

    /// Trains from a position in the training data; returns the model if it was gathered.
    fn train(
        strategy: &PipelineStrategy<M, B>,
        components: TrainingComponents<M>,
        learner: Learner<M>,
        [train, valid]: [Arc<dyn DataLoader<Input<M>>>; 2],
        begin: Begin,
    ) -> (Option<M>, SupervisedTrainingEventProcessor<M>) {
        let interrupter = components.interrupter.clone();
        let mut events = components.event_processor;
        let run = || -> Result<Option<M>, StrategyError> {
            let mut pipeline = strategy.pipeline();
            let mut run = Run {
                strategy,
                at: begin,
                items: train.num_items(),
                saved_step: pipeline.steps(),
                pipeline: &mut pipeline,
                learner,
                events: &mut events,
                interrupter: &interrupter,
                accumulated: components.grad_accumulation.unwrap_or(1),
            };
            // Batches are on the CPU. A rank moves the values that it needs to its device.
            let mut train = Epochs::new(train.to_device(&Device::flex()));
            let mut valid = Epochs::new(valid.to_device(&Device::flex()));
            train.skip_to(begin.position)?;
            valid.skip_to(begin.validated as u64 * valid.items() as u64)?;
            // A scheduler can't be set to a position.
            (0..begin.step).for_each(|_| run.learner.lr_step());
            let mut early_stopping = components.early_stopping;
            let ended = run.epochs(&mut train, &mut valid, components.num_epochs, |epoch| {
                let stopping = early_stopping.as_mut();
                stopping.is_some_and(|stop| stop.should_stop(epoch, &components.event_store))
            });
            // After an error too, so that the trained steps are kept, except if the pipeline has stopped.
            let saved = run.save();
            ended?;
            saved?;
            if let Some(checkpoints) = &strategy.checkpoints {
                checkpoints.wait()?;
            }
            if let Some(signals) = &strategy.signals {
                signals.end_at_once();
            }
            let device = strategy.gather.as_ref();
            let device = device.filter(|_| interrupter.error().is_none());
            let model = device.map(|device| run.pipeline.gather(device));
            Ok(model.transpose()?)
        };
        let model = run().unwrap_or_else(|error| {
            fail(&interrupter, error);
            None
        });
        (model, events)
    }

    /// Trains and validates until the last epoch has ended, or `stops` is true after one.
    fn epochs(
        &mut self,
        train: &mut Loader<M>,
        valid: &mut Loader<M>,
        last: usize,
        mut stops: impl FnMut(usize) -> bool,
    ) -> Result<(), StrategyError> {
        loop {
            let epoch = train.ended();
            // An interrupted run may not have been validated.
            if self.at.validated < epoch {
                self.validate(epoch, valid)?;
                if self.interrupter.should_stop() {
                    return Ok(());
                }
                self.at.validated = epoch;
                self.report(LearnerEvent::EndEpoch(epoch));
                self.interrupter.fail_on_error(self.events.flush());
                let checkpoints = self.strategy.checkpoints.as_deref();
                if checkpoints.is_some_and(|checkpoints| checkpoints.interval().is_none()) {
                    self.save()?;
                }
                if stops(epoch) {
                    return Ok(());
                }
            }
            if epoch >= last || self.interrupter.should_stop() {
                return Ok(());
            }
            self.train_epoch(epoch + 1, train)?;
            if self.interrupter.should_stop() {
                return Ok(());
            }
        }
    }

    fn train_epoch(&mut self, epoch: usize, loader: &mut Loader<M>) -> Result<(), StrategyError> {
        self.report(LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items: loader.items(),
        });
        let mut batches = loader.next_epoch()?;
        let mut iteration = 0;
        while !self.interrupter.should_stop() {
            let (mut parts, mut progress) = (Vec::new(), Vec::new());
            while parts.len() < self.accumulated
                && let Some(batch) = batches.next()
            {
                parts.push((self.strategy.convert)(batch?));
                progress.push(batches.progress());
            }
            if parts.is_empty() {
                break;
            }
            self.learner.lr_step();
            let started = Instant::now();
            let rate = self.learner.lr_current();
            let step = match self.strategy.may_have_groups {
                true => self.pipeline.step_accumulated(rate.clone(), parts)?,
                false => self.pipeline.step_accumulated(rate.base(), parts)?,
            };
            let seconds = started.elapsed().as_secs_f64();
            self.at.position = batches.position();
            for (of_batch, progress) in step.of_batches().zip(progress) {
                iteration += 1;
                let plan = self.pipeline.plan();
                self.strategy.steps.push(iteration, &step, plan, seconds);
                let item = StepItem::from_outputs(&of_batch)?;
                let item = TrainingItem::new(item, progress, Some(iteration), Some(rate.clone()));
                self.report(LearnerEvent::ProcessedItem(item));
            }
            if let Some(checkpoints) = &self.strategy.checkpoints {
                let progress = || run_progress(&self.at, self.items);
                let saved = checkpoints.after_step(self.pipeline, progress)?;
                if saved.is_some() {
                    self.saved_step = self.pipeline.steps();
                }
            }
            self.heed_signals()?;
        }
        drop(batches);
        self.at.position = loader.position();
        self.report(LearnerEvent::EndSplit(epoch));
        Ok(())
    }

    fn validate(&mut self, epoch: usize, loader: &mut Loader<M>) -> Result<(), StrategyError> {
        self.report_valid(LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items: loader.items(),
        });
        let mut batches = loader.next_epoch()?;
        let mut iteration = 0;
        while !self.interrupter.should_stop()
            && let Some(batch) = batches.next()
        {
            let batch = (self.strategy.convert)(batch?);
            let item = StepItem::from_outputs(&self.pipeline.evaluate(batch)?)?;
            iteration += 1;
            let item = TrainingItem::new(item, batches.progress(), Some(iteration), None);
            self.report_valid(LearnerEvent::ProcessedItem(item));
            self.heed_signals()?;
        }
        self.report_valid(LearnerEvent::EndSplit(epoch));
        Ok(())
    }

    /// Interrupts the training if a signal has arrived.
    fn heed_signals(&mut self) -> Result<(), StrategyError> {
        if let Some(signals) = &self.strategy.signals
            && let Some(signal) = signals.received_by_any(self.pipeline)?
        {
            self.interrupter.stop(Some(&signal.to_string()));
        }
        Ok(())
    }

    fn report(&mut self, event: LearnerEvent<<M as TrainStep>::Output>) {
        self.interrupter
            .fail_on_error(self.events.process_train(event));
    }

    fn report_valid(&mut self, event: LearnerEvent<<M as InferenceStep>::Output>) {
        self.interrupter
            .fail_on_error(self.events.process_valid(event));
    }

    /// Saves, unless this step is saved.
    fn save(&mut self) -> Result<(), StrategyError> {
        let step = self.pipeline.steps();
        if let Some(checkpoints) = &self.strategy.checkpoints
            && step != self.saved_step
        {
            let progress = run_progress(&self.at, self.items);
            checkpoints.save(self.pipeline, progress)?;
            self.saved_step = step;
        }
        Ok(())
    }
}

/// Returns the progress of a run for a checkpoint.
fn run_progress(at: &Begin, items: usize) -> RunProgress {
    RunProgress::at(at.position).with(json!({ ITEMS: items, VALIDATED: at.validated }))
}

/// Stops the training with an error. The errors of burn-train have no variant for other errors, so it gets the text.
fn fail(interrupter: &Interrupter, error: StrategyError) {
    match error {
        StrategyError::Dataset(error) => interrupter.fail(error),
        error => {
            let (device_id, message) = (0, with_causes(&error));
            let failure = WorkerFailure { device_id, message };
            interrupter.fail(TrainingError::Workers(vec![failure]));
        }
    }
}
