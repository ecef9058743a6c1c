//! The driver of a pipeline, without the types of the model and its batches.

use std::collections::BTreeSet;
use std::sync::Arc;

use tinderbox_deferred::{ParameterPath, ParameterTable};

use super::carry::Carries;
use super::programs::Programs;
use crate::error::Result;
use crate::runtime::digest::AnyError;
use crate::runtime::learning_rates::StepRates;
use crate::runtime::ranks::Ranks;
use crate::runtime::settings::{Options, Settings};
use crate::runtime::snapshots::{KeptSnapshots, Snapshot};
use crate::schedule::RankIndex;
use crate::{LossScale, PipelineError, Plan, RankError, RecoveryError, Stage, StateError};

/// Controls the ranks of a pipeline.
pub(crate) struct Driver {
    pub(crate) plan: Plan,
    /// The parameters of the model.
    pub(crate) table: Arc<ParameterTable>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) options: Options,
    pub(crate) programs: Programs,
    pub(crate) ranks: Box<dyn Ranks>,
    pub(crate) state: DriverState,
    pub(crate) condition: Condition,
    pub(crate) counts: CallCounts,
    pub(crate) carries: Carries,
    pub(crate) repaired: Vec<Repaired>,
    /// The snapshots of other ranks that this process keeps, with a recovery.
    pub(crate) kept: Option<KeptSnapshots>,
}

/// A parameter that had changed in the memory of a rank, or differed from its value in most replicas, and was repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The number of training steps done then.
    pub step: u64,
    /// The rank.
    pub rank: RankIndex,
    /// The parameter.
    pub path: ParameterPath,
}

/// The number of calls since the ranks of a driver were started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallCounts {
    /// Steps and evaluations, including refused ones.
    pub(crate) calls: u64,
    /// Steps and evaluations that ran.
    pub(crate) rounds: u64,
}

impl Driver {
    pub(crate) fn check_condition(&self) -> Result<()> {
        match self.condition {
            Condition::Sound => Ok(()),
            Condition::PartlyRestored => Err(StateError::Mixed.into()),
            Condition::StateLost => Err(RecoveryError::AwaitsRestore.into()),
            Condition::Stopped => Err(PipelineError::Stopped),
        }
    }

    pub(crate) fn check_not_averaged(&self) -> Result<(), StateError> {
        let is_free = !self.state.is_averaged;
        is_free.then_some(()).ok_or(StateError::Averaged)
    }

    /// Takes a snapshot of the rank of this process, if it has one.
    pub(crate) fn take_snapshot(&mut self) -> Result<Option<Snapshot>> {
        let take = |_, stages: &mut [Stage]| Snapshot::of(stages);
        Ok(self.ranks.ask("take a snapshot", take)?.pop())
    }

    pub(super) fn path_of(&self, position: usize) -> ParameterPath {
        self.table.iter().as_slice()[position].path.clone()
    }

    /// Runs code on every rank's thread, with its stages, and returns the results in the order of the ranks.
    pub(crate) fn on_ranks<R: Send + 'static>(
        &mut self,
        call: impl Fn(RankIndex, &mut [Stage]) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>> {
        self.check_condition()?;
        self.ranks.ask("run a call", call)
    }

    /// As [`on_ranks`](Self::on_ranks), for code that reads values.
    pub(super) fn read_on_ranks<R: Send + 'static>(
        &mut self,
        what: &'static str,
        call: impl Fn(RankIndex, &mut [Stage]) -> Result<R, AnyError> + Send + Sync + 'static,
    ) -> Result<Vec<R>> {
        let read: Result<Vec<R>, AnyError> = self.on_ranks(call)?.into_iter().collect();
        read.map_err(|source| self.ranks.notified(RankError::Unreadable { what, source }))
    }
}

/// The state of a driver, which is the same on all processes. A recovery restores it.
#[derive(Clone, Debug, Default)]
pub(crate) struct DriverState {
    /// The number of training steps done.
    pub(crate) step: u64,
    /// The loss scale of the next step.
    pub(crate) loss_scale: Option<LossScale>,
    /// Whether the averages are exchanged with the parameters.
    pub(crate) is_averaged: bool,
    /// The parameters that do not train now, by position in the table.
    pub(crate) frozen: BTreeSet<usize>,
    /// The learning rates of the last step.
    pub(crate) last_rates: Option<Arc<StepRates>>,
    /// A digest of all parameters that were frozen and set.
    pub(crate) changes: u64,
}

/// Whether the values of the ranks can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Sound,
    /// A restore has failed partway.
    PartlyRestored,
    /// The state of lost ranks is lost, so the values are initial.
    StateLost,
    /// A round has ended with an error that the driver detected.
    Stopped,
}
