//! A pipeline as a learning strategy of burn-train.

use std::any::{type_name, type_name_of_val};
use std::sync::{Arc, Mutex, MutexGuard};
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
use serde_json::{Value, json};
use tinderbox::world::with_causes;
use tinderbox::{Batch, Checkpoints, Pipeline};

use crate::metrics::{Kind, StepMetric, Steps};
use crate::{EndSignals, Epochs, StepItem, StrategyError};

/// The name under which a checkpoint has the number of items of an epoch.
const ITEMS: &str = "items_per_epoch";
/// The name under which a checkpoint has the number of epochs after which the run was validated.
const VALIDATED: &str = "validated_epochs";

type Input<M> = <M as TrainStep>::Input;

/// Returns a learner and a strategy with which burn-train trains a pipeline: the pipeline updates its parameters with
/// its own optimizer, at the rate of the scheduler. The batch of the model's `TrainStep` and `InferenceStep` is the batch
/// of the pipeline.
///
/// The steps of the model itself are not called, nor is [`TrainStep::optimize`].
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

/// As [`learner`], for a data loader whose batches are converted to the batches of the pipeline: of a type that can't
/// implement [`Batch`], because it is of another crate.
pub fn learner_with<M, B>(
    pipeline: Pipeline<M, B>,
    scheduler: impl Into<ModuleLrScheduler>,
    convert: impl Fn(Input<M>) -> B + 'static,
) -> (Learner<M>, PipelineStrategy<M, B>)
where
    M: LearnerModel + Sync,
    B: Batch,
{
    // The learner's optimizer is idle, and burn-train needs one.
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

/// Trains a pipeline under `SupervisedTraining` of burn-train; from [`learner`].
///
/// Clones share the pipeline.
#[derive(Clone, Debug)]
#[must_use]
pub struct PipelineStrategy<M: LearnerModel, B> {
    #[debug(skip)]
    pipeline: Arc<Mutex<Pipeline<M, B>>>,
    #[debug(skip)]
    convert: Arc<dyn Fn(Input<M>) -> B>,
    /// Whether the scheduler may have groups, of which a pipeline reports those that match nothing.
    #[debug(skip)]
    may_have_groups: bool,
    checkpoints: Option<Arc<Checkpoints>>,
    gather: Option<Device>,
    #[debug(skip)]
    signals: Option<Arc<EndSignals>>,
    #[debug(skip)]
    steps: Steps,
}

impl<M: LearnerModel + Sync, B: Batch> PipelineStrategy<M, B> {
    /// Resumes from the newest checkpoint, if there is one, and saves: after the steps that [`Checkpoints::every`]
    /// sets, otherwise after each epoch, and always when the training is interrupted or ends.
    ///
    /// A resumed run continues as if it had not stopped: with the next batch of the interrupted epoch, or its
    /// validation, at the rate that the scheduler would have had. It needs the same data loaders, with the same seeds, and
    /// the same scheduler. What burn-train itself remembers begins anew: the metrics of an interrupted epoch are of its
    /// rest, and early stopping counts from there.
    pub fn checkpoints(mut self, checkpoints: Checkpoints) -> Self {
        self.checkpoints = Some(Arc::new(checkpoints));
        self
    }

    /// Interrupts the training after the step or the validation batch in which one of these signals arrives; it is then saved
    /// to the [checkpoints](Self::checkpoints). `LearningResult::interrupted` has the name of the signal as its reason. After
    /// the training, each of the signals ends the program.
    pub fn end_on(mut self, signals: EndSignals) -> Self {
        self.signals = Some(Arc::new(signals));
        self
    }

    /// Sets the device of the model that burn-train returns. The default is the CPU.
    pub fn gather_on(mut self, device: Device) -> Self {
        self.gather = Some(device);
        self
    }

    /// Leaves the trained parameters on the ranks: burn-train returns the model without values. For models that do
    /// not fit one device.
    pub fn without_gather(mut self) -> Self {
        self.gather = None;
        self
    }

    /// Returns the pipeline. A training that begins meanwhile waits for it: drop it before on the same thread.
    ///
    /// # Errors
    ///
    /// If a training has panicked.
    pub fn pipeline(&self) -> Result<MutexGuard<'_, Pipeline<M, B>>, StrategyError> {
        self.pipeline.lock().map_err(|_| StrategyError::Poisoned)
    }

    /// The norm of all gradients of a step, before they are clipped.
    pub fn gradient_norm(&self) -> StepMetric {
        self.steps.metric(Kind::GradientNorm)
    }

    /// The share of all ranks' time in which they wait for each other, the bubble of the schedule included, in
    /// percent. Not available unless the pipeline [measures](tinderbox::pipeline::PipelineBuilder::measure).
    pub fn idle_share(&self) -> StepMetric {
        self.steps.metric(Kind::IdleShare)
    }

    /// The most bytes that a rank holds during a step: parameters, gradients, and values of micro-batches. The text
    /// lists the ranks; the number is the largest. Not available unless the pipeline
    /// [measures](tinderbox::pipeline::PipelineBuilder::measure).
    pub fn held_bytes(&self) -> StepMetric {
        self.steps.metric(Kind::PeakBytes)
    }

    /// Model FLOPs utilization: the floating-point operations of the model's products in a step, of those that all ranks
    /// could have done in that time at the machine's rate, in percent. Without those that recomputation repeats.
    /// Each micro-batch counts as the one that was traced. Not available unless the machine of the plan was
    /// [calibrated](tinderbox::calibrate()).
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
    /// As burn-train's own, which fails for a model without values.
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
            // Counted from 1.
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

/// Where a training begins, and continues.
#[derive(Clone, Copy, Default)]
struct Begin {
    /// The position in the training data.
    position: u64,
    /// The number of epochs after which it was validated.
    validated: usize,
    /// The number of steps of the run so far.
    step: u64,
}

/// What the epochs of a training share.
struct Run<'a, M: LearnerModel, B> {
    strategy: &'a PipelineStrategy<M, B>,
    pipeline: &'a mut Pipeline<M, B>,
    learner: Learner<M>,
    events: &'a mut SupervisedTrainingEventProcessor<M>,
    interrupter: &'a Interrupter,
    /// The number of batches of a step.
    accumulated: usize,
    /// Where the training is.
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
        items: u64,
    ) -> Result<Begin, StrategyError> {
        if components.checkpoint.is_some() || components.checkpointer.is_some() {
            return Err(StrategyError::WholeModel);
        }
        let Some(checkpoints) = &strategy.checkpoints else {
            return Ok(Begin::default());
        };
        let Some(resumed) = checkpoints.resume(&mut *strategy.pipeline()?)? else {
            return Ok(Begin::default());
        };
        let number = |name| resumed.metadata[name].as_u64();
        let (Some(saved), Some(validated)) = (number(ITEMS), number(VALIDATED)) else {
            return Err(StrategyError::OtherLoop { path: resumed.dir });
        };
        if saved != items {
            let found = items;
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
            let mut pipeline = strategy.pipeline()?;
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
            // Batches are made on the CPU: a rank moves what it needs to its device.
            let mut train = Epochs::new(train.to_device(&Device::flex()));
            let mut valid = Epochs::new(valid.to_device(&Device::flex()));
            train.skip_to(begin.position)?;
            valid.skip_to(begin.validated as u64 * valid.items() as u64)?;
            // A scheduler has no position.
            (0..begin.step).for_each(|_| run.learner.lr_step());
            let mut early_stopping = components.early_stopping;
            let ended = run.epochs(&mut train, &mut valid, components.num_epochs, |epoch| {
                let stopping = early_stopping.as_mut();
                stopping.is_some_and(|stop| stop.should_stop(epoch, &components.event_store))
            });
            // After an error too: what was trained is kept, unless the pipeline itself has stopped.
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
        train: &mut Epochs<Input<M>>,
        valid: &mut Epochs<Input<M>>,
        last: usize,
        mut stops: impl FnMut(usize) -> bool,
    ) -> Result<(), StrategyError> {
        loop {
            let epoch = train.ended();
            // A run may have been interrupted before.
            if self.at.validated < epoch {
                self.validate_epoch(epoch, valid)?;
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

    fn train_epoch(
        &mut self,
        epoch: usize,
        loader: &mut Epochs<Input<M>>,
    ) -> Result<(), StrategyError> {
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
                let plan = self.pipeline.plan().file();
                self.strategy.steps.push(iteration, &step, plan, seconds);
                let item = StepItem::from_outputs(&of_batch)?;
                let item = TrainingItem::new(item, progress, Some(iteration), Some(rate.clone()));
                self.report(LearnerEvent::ProcessedItem(item));
            }
            if let Some(checkpoints) = &self.strategy.checkpoints {
                let metadata = || metadata(self.items, self.at.validated);
                let saved =
                    checkpoints.after_step_with(self.pipeline, self.at.position, metadata)?;
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

    fn validate_epoch(
        &mut self,
        epoch: usize,
        loader: &mut Epochs<Input<M>>,
    ) -> Result<(), StrategyError> {
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
            let metadata = metadata(self.items, self.at.validated);
            checkpoints.save_with(self.pipeline, self.at.position, metadata)?;
            self.saved_step = step;
        }
        Ok(())
    }
}

fn metadata(items: usize, validated: usize) -> Value {
    json!({ ITEMS: items, VALIDATED: validated })
}

/// Stops the training with an error. burn-train's errors have no variant for the errors of a strategy, so it gets the text.
fn fail(interrupter: &Interrupter, error: StrategyError) {
    let error = match error {
        StrategyError::Dataset(error) => return interrupter.fail(error),
        error => error,
    };
    let message = with_causes(&error);
    let failure = WorkerFailure {
        device_id: 0,
        message,
    };
    interrupter.fail(TrainingError::Workers(vec![failure]));
}
