//! Calls of a pipeline as data: a recovery makes them again.

use std::any::Any;
use std::sync::Arc;

use tinderbox_deferred::{ParameterPath, Source, Values};
use tinderbox_fake::DynTensor;

use super::batches::Batches;
use super::driver::Driver;
use super::output::{Evaluation, StepOutput};
use super::state_digest::StateDigest;
use crate::error::Result;
use crate::runtime::execute::RankCall;
use crate::runtime::learning_rates::{LastRates, LearningRates, StepRates};
use crate::runtime::optimizer::SavedOptimizer;
use crate::runtime::ranks::To;

/// A call of a pipeline.
#[derive(Clone)]
pub(crate) enum Command {
    /// A training step; with a share, each process has only its own part of the samples of the batch, so many.
    Step {
        rates: LearningRates,
        batches: Arc<dyn Batches>,
        share: Option<usize>,
    },
    /// A forward alone.
    Evaluate(Arc<dyn Batches>),
    /// Replaces parameters and the state of the optimizer by saved ones.
    Restore(Arc<dyn Source>, Arc<dyn SavedOptimizer>),
    /// Replaces parameters, by position in the table.
    Set(Vec<(usize, DynTensor)>),
    /// Sets whether parameters train, by position in the table.
    SetTrains { positions: Vec<usize>, trains: bool },
    /// Exchanges the parameters and their averages.
    Average(bool),
    /// Reads the parameters of all ranks.
    Values(To),
    /// Reads one parameter, which is no clone.
    Parameter(ParameterPath),
    /// Computes digests of all parameters and states.
    Digest,
    /// Gives a value to all processes.
    Gather(Vec<u8>),
    /// Runs code on the ranks of this process.
    OnRanks(RankCall),
    /// Sets the number of training steps done.
    ResumeAt(u64),
    /// Sets the factor of a dynamic loss scale, and the number of finite steps since it changed.
    ResumeLossScale { factor: f64, steps: u64 },
    /// Sets the learning rates of the last step.
    ResumeRates(StepRates),
}

/// What a command returns.
#[derive(derive_more::TryInto)]
pub(crate) enum Reply {
    Done,
    Step(StepOutput),
    Evaluation(Evaluation),
    Values(Values),
    Parameter(DynTensor),
    Digest(StateDigest),
    Gathered(Vec<Vec<u8>>),
    OfRanks(Vec<Box<dyn Any + Send>>),
}

/// Who makes a call, and whether it changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// All processes take part, and the state of the ranks changes.
    Changes,
    /// All processes take part, and nothing changes.
    Reads,
    /// Each process makes it by itself, and the state changes.
    ChangesHere,
    /// Each process makes it by itself, and nothing changes.
    ReadsHere,
}

impl CallKind {
    pub(crate) const fn changes(self) -> bool {
        matches!(self, Self::Changes | Self::ChangesHere)
    }

    pub(crate) const fn is_of_all(self) -> bool {
        matches!(self, Self::Changes | Self::Reads)
    }
}

impl Command {
    pub(crate) const fn kind(&self) -> CallKind {
        match self {
            Self::Step { .. } | Self::Restore(..) | Self::Average(_) => CallKind::Changes,
            Self::Evaluate(_)
            | Self::Values(_)
            | Self::Parameter(_)
            | Self::Digest
            | Self::Gather(_) => CallKind::Reads,
            Self::Set(_)
            | Self::SetTrains { .. }
            | Self::ResumeAt(_)
            | Self::ResumeLossScale { .. }
            | Self::ResumeRates(_) => CallKind::ChangesHere,
            Self::OnRanks(_) => CallKind::ReadsHere,
        }
    }
}

impl Driver {
    /// Makes a call.
    pub(crate) fn apply(&mut self, command: &Command) -> Result<Reply> {
        let done = |(): ()| Reply::Done;
        match command {
            Command::Step {
                rates,
                batches,
                share,
            } => self.step(rates, &**batches, *share).map(Reply::Step),
            Command::Evaluate(batch) => self.evaluate(&**batch, None).map(Reply::Evaluation),
            Command::Restore(source, state) => self.restore(source, state).map(done),
            Command::Set(values) => self.set(values.clone()).map(done),
            Command::SetTrains { positions, trains } => {
                self.set_trains(positions, *trains).map(done)
            }
            Command::Average(is_averaged) => self.exchange_averages(*is_averaged).map(done),
            Command::Values(to) => self.values(*to).map(Reply::Values),
            Command::Parameter(path) => self.value_of(path.clone()).map(Reply::Parameter),
            Command::Digest => self.digest().map(Reply::Digest),
            Command::Gather(value) => {
                let given = (value.clone(), Vec::new());
                let all = self.ranks.exchange_bytes(To::All, given)?;
                let all = all.into_iter().map(|(value, _)| value).collect();
                Ok(Reply::Gathered(all))
            }
            Command::OnRanks(call) => self.call(call).map(Reply::OfRanks),
            Command::ResumeAt(step) => {
                self.state.step = *step;
                Ok(Reply::Done)
            }
            Command::ResumeLossScale { factor, steps } => {
                let scale = self.state.loss_scale;
                self.state.loss_scale = scale.map(|scale| scale.resumed(*factor, *steps));
                Ok(Reply::Done)
            }
            Command::ResumeRates(rates) => {
                self.state.last_rates = Some(LastRates::Saved(rates.clone()));
                Ok(Reply::Done)
            }
        }
    }
}
