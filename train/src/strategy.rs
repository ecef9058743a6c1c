//! The learning strategy with which burn-train trains a pipeline.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

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
use tinderbox::session::LearningRates;
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
/// burn-train calls neither the steps of the model nor [`TrainStep::optimize`]. The optimizer and the rate of the learner are
/// not used.
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
    // burn-train needs an optimizer and a rate, which nothing uses.
    let model = pipeline.model().module().clone();
    let learner = Learner::new(model, SgdConfig::new().init(), 0.0);
    let strategy = PipelineStrategy {
        pipeline: Arc::new(Mutex::new(pipeline)),
        convert: Arc::new(convert),
        rates: LearningRates::new(scheduler),
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
    /// The rates of a new run.
    rates: LearningRates,
    checkpoints: Option<Checkpoints>,
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
        self.checkpoints = Some(checkpoints);
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

    /// Returns the metric of the percentage of time in which ranks are idle.
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
        components: TrainingComponents<M>,
    ) -> LearningResult<M> {
        let interrupter = components.interrupter.clone();
        let mut run = Run::new(self, components, train.num_items());
        if let Err(error) = run.resume() {
            fail(&interrupter, error);
        }
        let start = LearnerEvent::Start {
            total_epochs: run.components.num_epochs,
            // Epochs count from 1.
            starting_epoch: run.at.validated + 1,
            label: run.components.label.clone(),
        };
        run.report(start);
        let (model, components) = run.run_to_end(&train, &valid);
        let mut events = components.event_processor;
        let summary = components.summary.and_then(|summary| summary.init().ok());
        interrupter.fail_on_error(events.process_train(LearnerEvent::End(summary)));
        interrupter.fail_on_error(events.flush());
        LearningResult {
            model: model.map_or_else(|| learner.model(), |model| model.valid()),
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
        let mut run = Run::new(self, components, train.num_items());
        run.at.validated = starting_epoch.saturating_sub(1);
        run.at.position = run.at.validated as u64 * run.at.items as u64;
        let (model, components) = run.run_to_end(&train, &valid);
        let model = model.unwrap_or_else(|| learner.model());
        (model, components.event_processor)
    }
}

/// The place of a training in its run.
#[derive(Default)]
struct Place {
    /// The position in the training data.
    position: u64,
    /// The number of validated epochs.
    validated: usize,
    /// The number of items of an epoch.
    items: usize,
}

impl Place {
    /// Returns the progress of the run for a checkpoint.
    fn progress(&self) -> RunProgress {
        let state = json!({ ITEMS: self.items, VALIDATED: self.validated });
        RunProgress::at(self.position).with(state)
    }
}

/// A training, which has the pipeline until its end.
struct Run<'a, M: LearnerModel, B> {
    strategy: &'a PipelineStrategy<M, B>,
    pipeline: MutexGuard<'a, Pipeline<M, B>>,
    components: TrainingComponents<M>,
    at: Place,
    rates: LearningRates,
    /// The number of steps of the run so far.
    step: u64,
    /// The step of the newest checkpoint.
    saved_step: u64,
}

impl<'a, M, B> Run<'a, M, B>
where
    M: LearnerModel + TrainStep<Output: StepItem> + Sync,
    M: InferenceStep<Input = Input<M>, Output: StepItem>,
    B: Batch,
{
    /// Creates a training from the first of this number of items of an epoch.
    fn new(
        strategy: &'a PipelineStrategy<M, B>,
        components: TrainingComponents<M>,
        items: usize,
    ) -> Self {
        let pipeline = strategy.pipeline();
        Self {
            strategy,
            components,
            at: Place {
                items,
                ..Place::default()
            },
            rates: strategy.rates.clone(),
            step: 0,
            saved_step: pipeline.steps(),
            pipeline,
        }
    }

    /// Restores the newest checkpoint, and continues where it was saved.
    fn resume(&mut self) -> Result<(), StrategyError> {
        if self.components.checkpoint.is_some() || self.components.checkpointer.is_some() {
            return Err(StrategyError::WholeModel);
        }
        let Some(checkpoints) = &self.strategy.checkpoints else {
            return Ok(());
        };
        let resumed = checkpoints.resume(&mut self.pipeline);
        self.saved_step = self.pipeline.steps();
        let Some(resumed) = resumed? else {
            return Ok(());
        };
        let number = |name| resumed.metadata[name].as_u64();
        let (Some(saved), Some(validated)) = (number(ITEMS), number(VALIDATED)) else {
            return Err(StrategyError::OtherLoop { path: resumed.dir });
        };
        let found = self.at.items as u64;
        if saved != found {
            return Err(StrategyError::Items { saved, found });
        }
        self.at.position = resumed.data_position;
        self.at.validated = validated as usize;
        self.step = resumed.step;
        Ok(())
    }

    /// Trains to the end and saves, and releases the pipeline. Returns the model if it was gathered.
    fn run_to_end(
        mut self,
        train: &TrainLoader<M>,
        valid: &ValidLoader<M>,
    ) -> (Option<M>, TrainingComponents<M>) {
        let model = self.run(train, valid).unwrap_or_else(|error| {
            fail(&self.components.interrupter, error);
            None
        });
        (model, self.components)
    }

    fn run(
        &mut self,
        train: &TrainLoader<M>,
        valid: &ValidLoader<M>,
    ) -> Result<Option<M>, StrategyError> {
        // Batches are on the CPU. A rank moves the values that it needs to its device.
        let mut train = Epochs::new(train.to_device(&Device::flex()));
        let mut valid = Epochs::new(valid.to_device(&Device::flex()));
        train.skip_to(self.at.position)?;
        valid.skip_to(self.at.validated as u64 * valid.items() as u64)?;
        let ended = self.epochs(&mut train, &mut valid);
        // After an error too, so that the trained steps are kept, except if the pipeline has stopped.
        let saved = self.save();
        ended?;
        saved?;
        if let Some(checkpoints) = &self.strategy.checkpoints {
            checkpoints.wait()?;
        }
        if let Some(signals) = &self.strategy.signals {
            signals.end_at_once();
        }
        let device = self.strategy.gather.as_ref();
        let device = device.filter(|_| self.components.interrupter.error().is_none());
        let model = device.map(|device| self.pipeline.gather(device));
        Ok(model.transpose()?)
    }

    /// Trains and validates until the last epoch has ended, or the training is stopped.
    fn epochs(
        &mut self,
        train: &mut Loader<M>,
        valid: &mut Loader<M>,
    ) -> Result<(), StrategyError> {
        while !self.should_stop() {
            let epoch = train.ended();
            if self.at.validated >= epoch {
                if epoch >= self.components.num_epochs {
                    break;
                }
                self.train_epoch(epoch + 1, train)?;
                continue;
            }
            // An interrupted run may not have been validated.
            self.validate(epoch, valid)?;
            if self.should_stop() {
                break;
            }
            self.at.validated = epoch;
            self.report(LearnerEvent::EndEpoch(epoch));
            let flushed = self.components.event_processor.flush();
            self.components.interrupter.fail_on_error(flushed);
            let checkpoints = self.strategy.checkpoints.as_ref();
            if checkpoints.is_some_and(|checkpoints| checkpoints.interval().is_none()) {
                self.save()?;
            }
            let components = &mut self.components;
            let stopping = components.early_stopping.as_mut();
            if stopping.is_some_and(|stop| stop.should_stop(epoch, &components.event_store)) {
                break;
            }
        }
        Ok(())
    }

    fn train_epoch(&mut self, epoch: usize, loader: &mut Loader<M>) -> Result<(), StrategyError> {
        self.report(LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items: loader.items(),
        });
        let mut batches = loader.next_epoch()?;
        // The number of batches of a step.
        let accumulated = self.components.grad_accumulation.unwrap_or(1);
        let mut iteration = 0;
        while !self.should_stop() {
            let (mut parts, mut progress) = (Vec::new(), Vec::new());
            while parts.len() < accumulated
                && let Some(batch) = batches.next()
            {
                parts.push((self.strategy.convert)(batch?));
                progress.push(batches.progress());
            }
            if parts.is_empty() {
                break;
            }
            let started = Instant::now();
            let (rate, step) = self.rates.step(&mut self.pipeline, self.step, parts)?;
            let seconds = started.elapsed().as_secs_f64();
            self.step += 1;
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
                let progress = || self.at.progress();
                let saved = checkpoints.after_step(&mut self.pipeline, progress)?;
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
        while !self.should_stop()
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
            && let Some(signal) = signals.received_by_any(&mut self.pipeline)?
        {
            let reason = signal.to_string();
            self.components.interrupter.stop(Some(&reason));
        }
        Ok(())
    }

    fn should_stop(&self) -> bool {
        self.components.interrupter.should_stop()
    }

    fn report(&mut self, event: LearnerEvent<<M as TrainStep>::Output>) {
        let reported = self.components.event_processor.process_train(event);
        self.components.interrupter.fail_on_error(reported);
    }

    fn report_valid(&mut self, event: LearnerEvent<<M as InferenceStep>::Output>) {
        let reported = self.components.event_processor.process_valid(event);
        self.components.interrupter.fail_on_error(reported);
    }

    /// Saves, unless this step is saved.
    fn save(&mut self) -> Result<(), StrategyError> {
        let step = self.pipeline.steps();
        if let Some(checkpoints) = &self.strategy.checkpoints
            && step != self.saved_step
        {
            checkpoints.save(&mut self.pipeline, self.at.progress())?;
            self.saved_step = step;
        }
        Ok(())
    }
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
