//! The driver of a pipeline. It does not know the types of the model and its batches.

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

/// Controls the ranks of a pipeline. In a world, every process has its own driver.
pub(crate) struct Driver {
    pub(crate) plan: Plan,
    /// The parameters of the model. A parameter is named by its position in this table.
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
    /// The snapshots of other ranks that this process keeps; `None` without a recovery.
    pub(crate) kept: Option<KeptSnapshots>,
}

/// A parameter that was repaired from another replica. Its value had changed in the memory of a rank, or differed from its
/// value in most replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The number of training steps that were completed before the repair.
    pub step: u64,
    /// The rank that had the wrong value.
    pub rank: RankIndex,
    /// The path of the parameter.
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
    /// Checks that the values of the ranks can be used.
    pub(crate) fn check_condition(&self) -> Result<()> {
        match self.condition {
            Condition::Sound => Ok(()),
            Condition::PartlyRestored => Err(StateError::Mixed.into()),
            Condition::StateLost => Err(RecoveryError::AwaitsRestore.into()),
            Condition::Stopped => Err(PipelineError::Stopped),
        }
    }

    /// Refuses calls that change parameters while the averages replace them.
    pub(crate) fn check_not_averaged(&self) -> Result<(), StateError> {
        let has_parameters = !self.state.is_averaged;
        has_parameters.then_some(()).ok_or(StateError::Averaged)
    }

    /// Takes a snapshot of the rank of this process, if it has one.
    pub(crate) fn take_snapshot(&mut self) -> Result<Option<Snapshot>> {
        let take = |_, stages: &mut [Stage]| Snapshot::of(stages);
        Ok(self.ranks.ask("take a snapshot", take)?.pop())
    }

    /// Returns the path of the parameter at a position of the table.
    pub(super) fn path_of(&self, position: usize) -> ParameterPath {
        self.table.iter().as_slice()[position].path.clone()
    }

    /// Runs code on the thread of every rank of this process, with its stages. Returns the results in the order of the ranks.
    pub(crate) fn on_ranks<R: Send + 'static>(
        &mut self,
        call: impl Fn(RankIndex, &mut [Stage]) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>> {
        self.check_condition()?;
        self.ranks.ask("run a call", call)
    }

    /// As [`on_ranks`](Self::on_ranks), for code that reads values from devices. `what` names the values in the error. The
    /// other processes are notified of an error, because they may wait for these values.
    pub(super) fn read_on_ranks<R: Send + 'static>(
        &mut self,
        what: &'static str,
        call: impl Fn(RankIndex, &mut [Stage]) -> Result<R, AnyError> + Send + Sync + 'static,
    ) -> Result<Vec<R>> {
        let read: Result<Vec<R>, AnyError> = self.on_ranks(call)?.into_iter().collect();
        read.map_err(|source| self.ranks.notified(RankError::Unreadable { what, source }))
    }
}

/// The state of a driver that is the same on all processes. A recovery restores it.
#[derive(Clone, Debug, Default)]
pub(crate) struct DriverState {
    /// The number of completed training steps, including the steps before a resume.
    pub(crate) step: u64,
    /// The loss scale of the next step.
    pub(crate) loss_scale: Option<LossScale>,
    /// Whether the averages replace the parameters.
    pub(crate) is_averaged: bool,
    /// The parameters that do not train now, by position in the table.
    pub(crate) frozen: BTreeSet<usize>,
    /// The learning rates of the last step.
    pub(crate) last_rates: Option<Arc<StepRates>>,
    /// A digest of all calls that froze, unfroze or set parameters. Processes compare it, so that all make the same changes.
    pub(crate) changes: u64,
}

/// Whether the values of the ranks can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// They can be used.
    Sound,
    /// A restore has failed partway. Only another restore makes them usable.
    PartlyRestored,
    /// The state of lost ranks is lost, so the values are initial. Only a restore makes them usable.
    StateLost,
    /// They may be wrong or differ between ranks, after an error that the ranks did not report themselves. The pipeline
    /// refuses every call.
    Stopped,
}
