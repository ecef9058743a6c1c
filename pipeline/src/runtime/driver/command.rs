//! Calls of a pipeline as data, so that a recovery can repeat them.

use std::any::Any;
use std::sync::Arc;

use tinderbox_deferred::{ParameterPath, Source};
use tinderbox_fake::DynTensor;

use super::batches::Batches;
use super::driver::{Driver, DriverState};
use super::output::Evaluation;
use super::state_digest::StateDigest;
use crate::error::Result;
use crate::runtime::execute::RankCall;
use crate::runtime::learning_rates::StepRates;
use crate::runtime::optimizer::SavedOptimizer;
use crate::runtime::ranks::To;

/// A call of a pipeline.
#[derive(Clone)]
pub(crate) enum Command {
    /// A training step. A share is the number of samples of a batch if each process has only its own part.
    Step {
        rates: Arc<StepRates>,
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
    /// Reads the parameters of all ranks, or one of them that is no clone.
    Values(To, Option<ParameterPath>),
    /// Computes digests of all parameters and states.
    Digest,
    /// Sends a value to all processes.
    Gather(Vec<u8>),
    /// Runs code on the ranks of this process.
    OnRanks(RankCall),
    /// Sets the state of the driver, such as the number of earlier training steps.
    Resume(DriverState),
}

/// The values of parameters.
pub(crate) type NamedValues = Vec<(ParameterPath, DynTensor)>;

/// The result of a command.
#[derive(derive_more::TryInto)]
pub(crate) enum Reply {
    Done,
    /// The result of a step or an evaluation.
    Output(Evaluation),
    Values(NamedValues),
    Digest(StateDigest),
    Gathered(Vec<Vec<u8>>),
    OfRanks(Vec<Box<dyn Any + Send>>),
}

/// The processes that make a call, and whether it changes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// All processes make it together, and the state of the ranks changes.
    Changes,
    /// All processes make it together, and nothing changes.
    Reads,
    /// Each process makes it alone, and the state changes.
    ChangesHere,
    /// Each process makes it alone, and nothing changes.
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
            Self::Evaluate(_) | Self::Values(..) | Self::Digest | Self::Gather(_) => {
                CallKind::Reads
            }
            Self::Set(_) | Self::SetTrains { .. } | Self::Resume(_) => CallKind::ChangesHere,
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
            } => self.step(rates, &**batches, *share).map(Reply::Output),
            Command::Evaluate(batch) => self.evaluate(&**batch, None).map(Reply::Output),
            Command::Restore(source, state) => self.restore(source, state).map(done),
            Command::Set(values) => self.set(values.clone()).map(done),
            Command::SetTrains { positions, trains } => {
                self.set_trains(positions, *trains).map(done)
            }
            Command::Average(is_averaged) => self.exchange_averages(*is_averaged).map(done),
            Command::Values(to, only) => self.values(*to, only.clone()).map(Reply::Values),
            Command::Digest => self.digest().map(Reply::Digest),
            Command::Gather(value) => {
                let given = (value.clone(), Vec::new());
                let all = self.ranks.exchange_bytes(To::All, given)?;
                let all = all.into_iter().map(|(value, _)| value).collect();
                Ok(Reply::Gathered(all))
            }
            Command::OnRanks(call) => {
                self.check_condition()?;
                let made = self.ranks.call("run a call", call.clone());
                made.map(Reply::OfRanks)
            }
            Command::Resume(state) => {
                self.state = state.clone();
                Ok(Reply::Done)
            }
        }
    }
}
