//! The loop of a session: steps, saves, evaluations and events, until the last step or an interruption.

use std::time::{Duration, Instant};

use burn::module::Module;
use serde::Deserialize;
use serde_json::json;
use tinderbox_pipeline::{Batch, Pipeline, PipelineError, split_batch};
use tinderbox_world::with_causes;

use super::data::{DataError, IntoBatch, NextBatch, TrainingData};
use super::event::{Event, EventHandler, Until};
use super::position::Position;
use super::rates::RatedStep;
use super::stop::{Interruption, Stop};
use super::validation::{Periodic, Validation};
use crate::checkpoints::{Checkpoints, RunProgress};
use crate::error::SessionError;

/// The key of the position in the metadata of a checkpoint.
const POSITION: &str = "session_position";

/// Trains a pipeline to its last step: the loop around [`Pipeline::step`], with checkpoints, evaluations, learning rates
/// and events.
///
/// A session makes the calls that a loop of your own would make, in the same order, so losses and parameters have the same
/// bits. After each step, it does four things in this order:
///
/// 1. It reports the step.
/// 2. It saves, if a save is due.
/// 3. It ends, if an interruption was requested.
/// 4. It evaluates, if an evaluation is due.
///
/// In a [`World`](crate::World), every process runs the same session, with the same settings and the same data. The event
/// handlers of rank 0 are called; on other ranks, only handlers that are [for all](EventHandler::is_for_all). With a
/// [`Recovery`](crate::Recovery), a session continues when processes are lost. If the state of a rank is lost too, the
/// session goes back to the newest checkpoint by itself.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::AdamWConfig;
/// use burn::tensor::{Device, Tensor};
/// use tinderbox::session::{Event, Position};
/// use tinderbox::{Checkpoints, Deferred, Machine, Outputs, Pipeline, Session, Traceable};
///
/// # let dir = std::env::temp_dir().join(format!("tinderbox-session-{}", std::process::id()));
/// # let model = Deferred::new(|device: &Device| -> Vec<Linear> {
/// #     (0..4).map(|_| LinearConfig::new(8, 8).init(device)).collect()
/// # })?;
/// # let samples = |first: u64| Tensor::<2>::full([8, 8], 1.0 + first as f32, &Device::flex());
/// # let trace = model.trace(&samples(0), 2, |layers: &Vec<Linear>, x| {
/// #     Outputs::loss(layers.iter().fold(x, |x, layer| layer.forward(x)).powf_scalar(2.0).mean())
/// # })?;
/// # let plan = trace.plan(&Machine::local(2)?)?;
/// let pipeline = Pipeline::builder(&model, &trace, &plan).optimizer(AdamWConfig::new()).start()?;
/// let mut losses = Vec::new();
/// let mut session = Session::builder(pipeline)
///     .checkpoints(Checkpoints::open(&dir)?.every(10))
///     .learning_rate(|step| 1e-3 / (1 + step) as f64)
///     .epochs(2)
///     .evaluate_every(10, || vec![samples(0)])
///     .on_event(|event: &Event| {
///         if let Event::Step { loss, .. } = event {
///             losses.push(*loss);
///         }
///     })
///     .start()?; // from the newest checkpoint, if there is one
/// // Three batches of 8 samples in each epoch.
/// let outcome = session.train(|at: Position| (at.sample < 24).then(|| samples(at.sample)))?;
/// assert_eq!((outcome.steps, outcome.position), (6, Position { epoch: 2, sample: 0 }));
/// let trained: Vec<Linear> = session.into_pipeline().gather(&Device::flex())?;
/// assert_eq!((losses.len(), trained.len()), (6, 4));
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A step of a session has one whole batch. For steps over several batches ([`Pipeline::step_accumulated`]) or over shares
/// of a batch ([`Pipeline::step_share`]), write a loop of your own.
#[derive(derive_more::Debug)]
#[debug(
    "Session {{ pipeline: {pipeline:?}, checkpoints: {checkpoints:?}, until: {until:?}, place: {place:?}, .. }}"
)]
pub struct Session<'a, M, B> {
    pub(super) pipeline: Pipeline<M, B>,
    pub(super) checkpoints: Option<Checkpoints>,
    /// Runs a step with its learning rate. `None` only until the builder has set the rates.
    pub(super) rated_step: Option<RatedStep<'a, M, B>>,
    pub(super) until: Until,
    pub(super) validation: Option<Periodic<'a, B>>,
    pub(super) handlers: Vec<Box<dyn EventHandler + 'a>>,
    pub(super) stop: Stop,
    pub(super) place: Place,
    /// Whether this process has rank 0, whose handlers get the events.
    pub(super) is_first: bool,
    /// The number of recoveries of the pipeline that were reported to the handlers.
    pub(super) recovered: usize,
    pub(super) outcome: Outcome,
    /// The time of the evaluations of this training, which [`Outcome::took`] does not count.
    pub(super) evaluating: Duration,
}

/// The progress of a session: the position in the data, and what was done there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    position: Position,
    /// The number of samples of all steps of the run, over all epochs.
    samples: u64,
    /// The step of the newest checkpoint; `None` before the first one.
    saved: Option<u64>,
    /// The step of the last evaluation since the session was started or restored.
    evaluated: Option<u64>,
}

impl Place {
    /// Returns the progress for a checkpoint.
    fn progress(&self) -> RunProgress {
        RunProgress::at(self.samples).with(json!({ POSITION: self.position }))
    }
}

/// The result of a training.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// The number of training steps done, including the steps before a resume.
    pub steps: u64,
    /// The position in the data.
    pub position: Position,
    /// The loss of the last step; `None` if there was no step to do.
    pub loss: Option<f64>,
    /// The result of the last evaluation of this training; `None` without an evaluation.
    pub validation: Option<Validation>,
    /// The number of samples of the steps of this training. Steps before a resume are not counted. Steps that are repeated
    /// from a checkpoint, after processes and their state were lost, are counted again.
    pub samples: u64,
    /// The time of the training: steps and saves, without evaluations.
    pub took: Duration,
    /// The request to end the training; `None` without one. A request during the last step is reported too, although the
    /// training would have ended anyway.
    pub interrupted: Option<Interruption>,
}

impl Outcome {
    /// Returns the samples per second, including the time of saves and excluding the time of evaluations.
    #[must_use]
    pub fn samples_per_s(&self) -> f64 {
        self.samples as f64 / self.took.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

impl<M: Module + Sync + 'static, B: Batch> Session<'_, M, B> {
    /// Trains until the last step or epoch, or until an interruption is requested. If the session has checkpoints, it saves
    /// at the end, and waits for a save in the background.
    ///
    /// With a [recovery](crate::pipeline::PipelineBuilder::recovery), it also waits until all processes have ended the
    /// training ([`Pipeline::finish`]): a process that ends earlier can't help the others to recover. Call `finish` again
    /// after later calls of the pipeline, such as `gather`.
    ///
    /// `data` is a closure that returns the batch at a [`Position`], or other [`TrainingData`].
    ///
    /// # Errors
    ///
    /// Returns an error if a batch can't be loaded, an epoch has no batch, or a step, an evaluation or a save fails. The
    /// session does not save after an error. If the pipeline has not stopped, another call continues with the batch of the
    /// failed step.
    pub fn train(&mut self, mut data: impl TrainingData<B>) -> Result<Outcome, SessionError> {
        self.stop.begin()?;
        (self.outcome, self.evaluating) = (Outcome::default(), Duration::ZERO);
        let began = Instant::now();
        let ended = self.train_to_end(&mut data);
        self.stop.end();
        self.outcome.interrupted = ended?;
        self.outcome.steps = self.pipeline.steps();
        self.outcome.position = self.place.position;
        self.outcome.took = began.elapsed().saturating_sub(self.evaluating);
        Ok(self.outcome)
    }

    /// Returns the mean loss of some batches, weighted by their samples. Changes no parameter. The first batch that is
    /// `None` ends the evaluation.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no batch, or if a batch can't be loaded or evaluated.
    pub fn evaluate<I>(&mut self, batches: I) -> Result<Validation, SessionError>
    where
        I: IntoIterator<Item: IntoBatch<B>>,
    {
        let mut losses = Validation::default();
        for batch in batches {
            if !self.add_loss(&mut losses, batch.into_batch())? {
                break;
            }
        }
        losses.mean().ok_or(SessionError::NoValidation)
    }

    /// Returns the pipeline.
    pub fn pipeline(&self) -> &Pipeline<M, B> {
        &self.pipeline
    }

    /// Returns the pipeline for changes, for example to set parameters between two trainings.
    pub fn pipeline_mut(&mut self) -> &mut Pipeline<M, B> {
        &mut self.pipeline
    }

    /// Returns the pipeline and drops the session, for example to gather the trained model.
    pub fn into_pipeline(self) -> Pipeline<M, B> {
        self.pipeline
    }

    /// Returns the position in the data of the next batch.
    pub fn position(&self) -> Position {
        self.place.position
    }

    /// Determines whether this process has rank 0, and restores the newest checkpoint if there is one.
    pub(super) fn resume(&mut self) -> Result<(), SessionError> {
        self.update_is_first()?;
        self.restore(None).map(drop)
    }

    /// Trains to the end. Whenever processes are lost together with their state, goes back to a checkpoint and continues.
    fn train_to_end<D: TrainingData<B>>(
        &mut self,
        data: &mut D,
    ) -> Result<Option<Interruption>, SessionError> {
        self.report(self.started())?;
        loop {
            match self.run(data) {
                Err(error) if self.pipeline.awaits_restore() => self.go_back(error)?,
                ended => return ended,
            }
        }
    }

    /// Trains from the current position to the end, or to the first error.
    fn run<D: TrainingData<B>>(
        &mut self,
        data: &mut D,
    ) -> Result<Option<Interruption>, SessionError> {
        // An interruption ends a training before the evaluation of its last step. The next training does this evaluation.
        let mut ended = self.evaluate_if_due()?;
        while ended.is_none() && !self.is_done() {
            ended = self.run_epoch(data)?;
        }
        self.end(ended)?;
        Ok(ended)
    }

    /// Trains to the end of the epoch, or to the end of the training if it is earlier.
    fn run_epoch<D: TrainingData<B>>(
        &mut self,
        data: &mut D,
    ) -> Result<Option<Interruption>, SessionError> {
        let failed = |position| move |source: DataError| SessionError::Data { position, source };
        let position = self.place.position;
        let mut next = data.epoch(position).map_err(failed(position))?;
        loop {
            let (position, began) = (self.place.position, Instant::now());
            let Some(batch) = next(position).map_err(failed(position))? else {
                self.end_epoch()?;
                return Ok(None);
            };
            self.step(batch, began)?;
            self.save_if_due()?;
            let mut ended = self.interruption()?;
            if ended.is_none() {
                ended = self.evaluate_if_due()?;
            }
            if ended.is_some() || self.is_done() {
                return Ok(ended);
            }
        }
    }

    fn is_done(&self) -> bool {
        let is_reached = |limit: Option<u64>, value| limit.is_some_and(|limit| value >= limit);
        is_reached(self.until.steps, self.pipeline.steps())
            || is_reached(self.until.epochs, self.place.position.epoch)
    }

    /// Runs a training step and reports it. `began` is before the load of the batch.
    fn step(&mut self, batch: B, began: Instant) -> Result<(), SessionError> {
        let samples = samples_of(&batch)?;
        let step = self.rated_step.as_mut();
        let step = step.ok_or(SessionError::NoLearningRate)?;
        let (rate, output) = step(&mut self.pipeline, batch)?;
        let loss = output.loss;
        self.place.position.sample += samples;
        self.place.samples += samples;
        self.outcome.samples += samples;
        self.outcome.loss = Some(loss);
        self.report(Event::Step {
            step: self.pipeline.steps(),
            position: self.place.position,
            loss,
            rate,
            samples,
            took: began.elapsed(),
            output,
        })
    }

    fn end_epoch(&mut self) -> Result<(), SessionError> {
        let Position { epoch, sample } = self.place.position;
        if sample == 0 {
            return Err(SessionError::EmptyEpoch { epoch });
        }
        self.place.position = self.place.position.next_epoch();
        self.report(Event::EpochEnded {
            epoch,
            samples: sample,
            step: self.pipeline.steps(),
        })
    }

    fn save_if_due(&mut self) -> Result<(), SessionError> {
        let Some(checkpoints) = &self.checkpoints else {
            return Ok(());
        };
        let progress = || self.place.progress();
        let Some(dir) = checkpoints.after_step(&mut self.pipeline, progress)? else {
            return Ok(());
        };
        let step = self.pipeline.steps();
        self.place.saved = Some(step);
        self.report(Event::Saved { step, dir })
    }

    /// Saves the last step unless it is saved, waits for the save, and reports the end.
    fn end(&mut self, interrupted: Option<Interruption>) -> Result<(), SessionError> {
        let (step, position) = (self.pipeline.steps(), self.place.position);
        let mut dir = None;
        if let Some(checkpoints) = &self.checkpoints {
            // `take` marks the step as not saved until the wait has succeeded. After an error, another call saves it again.
            let is_saved = self.place.saved.take() == Some(step);
            if !is_saved {
                checkpoints.save(&mut self.pipeline, self.place.progress())?;
            }
            checkpoints.wait()?;
            self.place.saved = Some(step);
            let saved_dir = dir.insert(checkpoints.run().step_place(step)).clone();
            if !is_saved {
                self.report(Event::Saved {
                    step,
                    dir: saved_dir,
                })?;
            }
        }
        self.report(match interrupted {
            Some(by) => Event::Interrupted {
                step,
                position,
                by,
                dir,
            },
            None => Event::Finished { step, position },
        })?;
        Ok(self.pipeline.finish()?)
    }

    /// Returns a request to end the training that any process has received. The processes exchange their requests, because
    /// all of them must end after the same step.
    fn interruption(&mut self) -> Result<Option<Interruption>, SessionError> {
        if !self.stop.is_used() {
            return Ok(None);
        }
        let received = self.pipeline.all_gather(self.stop.received())?;
        Ok(received.into_iter().flatten().next())
    }

    /// Evaluates the model, if an evaluation of the last step is due and was not done. A request to end the training ends
    /// the evaluation without a result, and is returned.
    fn evaluate_if_due(&mut self) -> Result<Option<Interruption>, SessionError> {
        let step = self.pipeline.steps();
        let is_evaluated = step == 0 || self.place.evaluated == Some(step);
        let periodic = self.validation.as_mut().filter(|_| !is_evaluated);
        let Some(periodic) = periodic.filter(|periodic| step.is_multiple_of(periodic.every)) else {
            return Ok(None);
        };
        let began = Instant::now();
        let batches = (periodic.batches)();
        let mut losses = Validation::default();
        for batch in batches {
            if !self.add_loss(&mut losses, batch)? {
                break;
            }
            let interrupted = self.interruption()?;
            if interrupted.is_some() {
                self.evaluating += began.elapsed();
                return Ok(interrupted);
            }
        }
        let validation = losses.mean().ok_or(SessionError::NoValidation)?;
        self.place.evaluated = Some(step);
        self.outcome.validation = Some(validation);
        self.evaluating += began.elapsed();
        self.report(Event::Evaluated { step, validation })?;
        Ok(None)
    }

    /// Evaluates a batch and adds its loss; returns `false` if there is no batch.
    fn add_loss(
        &mut self,
        losses: &mut Validation,
        batch: NextBatch<B>,
    ) -> Result<bool, SessionError> {
        let batch = batch.map_err(|source| SessionError::ValidationData { source })?;
        let Some(batch) = batch else {
            return Ok(false);
        };
        let samples = samples_of(&batch)?;
        let loss = self.pipeline.evaluate(batch)?.loss;
        losses.add(loss.ok_or(SessionError::NoLoss)?, samples);
        Ok(true)
    }

    /// Goes back to the newest checkpoint after an error: processes were lost, and no process has a copy of their state.
    fn go_back(&mut self, error: SessionError) -> Result<(), SessionError> {
        if self.checkpoints.is_none() {
            return Err(error);
        }
        let reason = with_causes(&error);
        tracing::warn!(error = reason, "going back to the newest checkpoint");
        if !self.restore(Some(reason))? {
            let source = Box::new(error);
            return Err(SessionError::NothingSaved { source });
        }
        Ok(())
    }

    /// Restores the newest checkpoint, with the position in the data; returns `false` if there is no checkpoint. The reason
    /// is the error after which the training goes back.
    fn restore(&mut self, reason: Option<String>) -> Result<bool, SessionError> {
        let Some(checkpoints) = &self.checkpoints else {
            return Ok(false);
        };
        let Some(resumed) = checkpoints.resume(&mut self.pipeline)? else {
            return Ok(false);
        };
        let dir = resumed.dir;
        // Only a session saves its position: without one, the checkpoint belongs to another training loop.
        let Ok(position) = Position::deserialize(&resumed.metadata[POSITION]) else {
            return Err(SessionError::OtherLoop { path: dir });
        };
        self.place = Place {
            position,
            samples: resumed.data_position,
            saved: Some(resumed.step),
            evaluated: None,
        };
        self.report(Event::Resumed {
            reason,
            step: resumed.step,
            position,
            dir,
            skipped: resumed.skipped,
        })?;
        Ok(true)
    }

    fn started(&self) -> Event {
        Event::Started {
            step: self.pipeline.steps(),
            position: self.place.position,
            until: self.until,
        }
    }

    /// Reports the recoveries since the last event, then an event. After a recovery, another process may have rank 0: its
    /// handlers get [`Event::Started`] first.
    fn report(&mut self, event: Event) -> Result<(), SessionError> {
        let recovered = self.pipeline.recovered()[self.recovered..].to_vec();
        if !recovered.is_empty() {
            self.recovered += recovered.len();
            let was_first = self.is_first;
            self.update_is_first()?;
            if self.is_first && !was_first {
                self.notify(&self.started());
            }
            for one in recovered {
                self.notify(&Event::Recovered(one));
            }
        }
        self.notify(&event);
        Ok(())
    }

    /// Calls the handlers that get the events of this process.
    fn notify(&mut self, event: &Event) {
        let is_first = self.is_first;
        let handlers = self.handlers.iter_mut();
        let handlers = handlers.filter(|handler| is_first || handler.is_for_all());
        handlers.for_each(|handler| handler.handle(event));
    }

    /// Determines whether this process has rank 0 now. Ranks are numbered again when processes are lost.
    fn update_is_first(&mut self) -> Result<(), PipelineError> {
        let own = self.pipeline.on_ranks(|rank, _| rank.index() == 0)?;
        self.is_first = own.contains(&true);
        Ok(())
    }
}

/// Returns the number of samples of a batch. Splits it into a single part, because the split is what counts samples.
fn samples_of<B: Batch>(batch: &B) -> Result<u64, PipelineError> {
    let parts = split_batch(batch, 1)?;
    Ok(parts.iter().map(|(_, samples)| *samples as u64).sum())
}
