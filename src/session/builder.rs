//! The settings of a session.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use burn::module::Module;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use tinderbox_pipeline::{Batch, Pipeline, PipelineError, StepError};

use super::data::IntoBatch;
use super::event::{EventHandler, Until};
use super::rates::LearningRates;
#[cfg(feature = "signals")]
use super::signals::{EndSignal, EndSignals};
use super::stop::Stop;
use super::training::{Outcome, Place, Session};
use super::validation::{Periodic, ValidationBatches};
use crate::checkpoints::Checkpoints;
use crate::error::SessionError;

impl<'a, M: Module + Sync + 'static, B: Batch> Session<'a, M, B> {
    /// Returns a builder of a session. It needs a [learning rate](SessionBuilder::learning_rate) and an end:
    /// [`steps`](SessionBuilder::steps) or [`epochs`](SessionBuilder::epochs).
    pub fn builder(pipeline: Pipeline<M, B>) -> SessionBuilder<'a, M, B> {
        SessionBuilder(Session {
            pipeline,
            checkpoints: None,
            rated_step: None,
            until: Until::default(),
            validation: None,
            handlers: Vec::new(),
            stop: Stop::default(),
            place: Place::default(),
            is_first: false,
            recovered: 0,
            outcome: Outcome::default(),
            evaluating: Duration::ZERO,
        })
    }
}

/// Builds a [`Session`].
#[derive(derive_more::Debug)]
#[debug("SessionBuilder({_0:?})")]
#[must_use]
pub struct SessionBuilder<'a, M, B>(Session<'a, M, B>);

impl<'a, M: Module + Sync + 'static, B: Batch> SessionBuilder<'a, M, B> {
    /// Resumes from the newest undamaged checkpoint. Saves after the steps that [`Checkpoints::every`] sets, when the training
    /// is interrupted, and at its end. A checkpoint has the position in the data. Default: no checkpoints.
    pub fn checkpoints(mut self, checkpoints: Checkpoints) -> Self {
        self.0.checkpoints = Some(checkpoints);
        self
    }

    /// Sets the learning rate of each step, as a function of the number of steps before it. Resumed runs compare
    /// [its description](Checkpoints::describe_learning_rates), if the checkpoints have one.
    pub fn learning_rate(mut self, mut rate: impl FnMut(u64) -> f64 + 'a) -> Self {
        self.0.rated_step = Some(Box::new(move |pipeline: &mut Pipeline<M, B>, batch| {
            let rate = rate(pipeline.steps());
            Ok((rate, pipeline.step(rate, batch)?))
        }));
        self
    }

    /// Sets the learning rate of each step by a scheduler of Burn, with or without groups of parameters, or by a number. Pass
    /// the scheduler of a new run: a resumed session advances it to its step.
    pub fn scheduler(mut self, scheduler: impl Into<ModuleLrScheduler>) -> Self {
        let mut rates = LearningRates::new(scheduler);
        self.0.rated_step = Some(Box::new(move |pipeline: &mut Pipeline<M, B>, batch| {
            let steps = pipeline.steps();
            let (rates, output) = rates.step(pipeline, steps, [batch])?;
            Ok((rates.base(), output))
        }));
        self
    }

    /// Ends the training after this number of steps, including the steps before a resume.
    pub fn steps(mut self, steps: u64) -> Self {
        self.0.until.steps = Some(steps);
        self
    }

    /// Ends the training after this number of epochs, including the epochs before a resume. With [`steps`](Self::steps), the
    /// limit that is reached first ends it.
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.0.until.epochs = Some(epochs);
        self
    }

    /// Evaluates the model at an interval of steps, at least 1, on the batches that a function returns: an iterator of batches
    /// or of results. Evaluations change nothing. A resumed run evaluates the last step before it, if that step is due.
    pub fn evaluate_every<I>(mut self, steps: u64, mut batches: impl FnMut() -> I + 'a) -> Self
    where
        I: IntoIterator<IntoIter: 'a, Item: IntoBatch<B> + 'a>,
    {
        let batches = move || -> ValidationBatches<'a, B> {
            Box::new(batches().into_iter().map(IntoBatch::<B>::into_batch))
        };
        self.0.validation = Some(Periodic {
            every: steps,
            batches: Box::new(batches),
        });
        self
    }

    /// Adds a handler of events: a closure `|event: &Event| ...`, or a `Printer` (feature `printer`).
    pub fn on_event(mut self, handler: impl EventHandler + 'a) -> Self {
        self.0.handlers.push(Box::new(handler));
        self
    }

    /// Ends the training after its running step when the flag is set, and saves. In a [`World`](crate::World), each process
    /// has a flag, and one set flag ends all processes. Cost of a step in a world: an [exchange](Pipeline::all_gather) of a
    /// few bytes.
    pub fn stop_flag(mut self, flag: Arc<AtomicBool>) -> Self {
        self.0.stop.flag = Some(flag);
        self
    }

    /// Ends the training after its running step when SIGINT (Ctrl-C), SIGTERM or SIGUSR1 arrives, and saves. Calls
    /// [`stop_on`](Self::stop_on) with these signals.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system refuses to report a signal.
    #[cfg(feature = "signals")]
    #[cfg_attr(docsrs, doc(cfg(feature = "signals")))]
    pub fn stop_on_signals(self) -> Result<Self, SessionError> {
        self.stop_on([
            EndSignal::Int,
            EndSignal::Term,
            #[cfg(unix)]
            EndSignal::Usr1,
        ])
    }

    /// Ends the training after its running step when one of these signals arrives, and saves. A second SIGINT, SIGTERM or
    /// SIGQUIT ends the program immediately, and so does each of the signals after the training. See
    /// [`EndSignals`](super::EndSignals). In a [`World`](crate::World), all processes have the same signals, and a signal to
    /// one process ends all. Cost of a step in a world: an [exchange](Pipeline::all_gather) of a few bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system refuses to report a signal.
    #[cfg(feature = "signals")]
    #[cfg_attr(docsrs, doc(cfg(feature = "signals")))]
    pub fn stop_on(
        mut self,
        signals: impl IntoIterator<Item = EndSignal>,
    ) -> Result<Self, SessionError> {
        self.0.stop.signals = Some(EndSignals::listen(signals)?);
        Ok(self)
    }

    /// Checks the settings, and restores the newest checkpoint if there is one. In a [`World`](crate::World), all processes
    /// make this call.
    ///
    /// # Errors
    ///
    /// Returns an error if the pipeline has no optimizer, if there is no learning rate or no end, or if a number is 0,
    /// including the [interval](Checkpoints::every) of the checkpoints. Returns an error if a checkpoint can't be restored
    /// ([`Checkpoints::resume`]) or is of another training loop.
    pub fn start(self) -> Result<Session<'a, M, B>, SessionError> {
        let Self(mut session) = self;
        if !session.pipeline.has_optimizer() {
            return Err(PipelineError::from(StepError::NoOptimizer).into());
        }
        let Until { steps, epochs } = session.until;
        let every = session.validation.as_ref().map(|periodic| periodic.every);
        for (number, setting) in [
            (steps, "steps"),
            (epochs, "epochs"),
            (every, "evaluate_every"),
        ] {
            if number == Some(0) {
                return Err(SessionError::Zero { setting });
            }
        }
        if steps.or(epochs).is_none() {
            return Err(SessionError::NoEnd);
        }
        if let Some(checkpoints) = &session.checkpoints {
            checkpoints.check_interval()?;
        }
        if session.rated_step.is_none() {
            return Err(SessionError::NoLearningRate);
        }
        session.resume()?;
        Ok(session)
    }
}
