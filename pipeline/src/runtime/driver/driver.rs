//! The driver of a pipeline: what it knows and has, whatever the types of the model and its batches.

use std::sync::Arc;

use burn::tensor::FloatDType;
use tinderbox_deferred::{Parameter, ParameterPath, ParameterTable};

use super::carry::Carries;
use super::output::OutputsOn;
use super::programs::Programs;
use super::repaired::Repaired;
use super::state::{Condition, DriverState};
use crate::plan::Plan;
use crate::runtime::ranks::Ranks;
use crate::runtime::settings::Settings;
use crate::runtime::snapshots::KeptSnapshots;
use crate::{PipelineError, RecoveryError, StateError};

/// Settings of calls, which the ranks do not need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// The number of micro-batches of a batch that has enough samples.
    pub(crate) micro_batches: usize,
    /// The 16-bit dtype of mixed precision.
    pub(crate) compute: Option<FloatDType>,
    /// Whether processes compare the values of batches.
    pub(crate) checks_batches: bool,
    /// Which processes get the named outputs.
    pub(crate) outputs: OutputsOn,
    /// After how many steps ranks check that values have not changed in memory.
    pub(crate) check_memory: Option<u64>,
}

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

/// How many calls the ranks of a driver have had since they started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallCounts {
    /// Steps and evaluations, those that were refused among them.
    pub(crate) calls: u64,
    /// Those that ran.
    pub(crate) rounds: u64,
}

impl Driver {
    pub(crate) fn check_condition(&self) -> Result<(), PipelineError> {
        match self.condition {
            Condition::Sound => Ok(()),
            Condition::PartlyRestored => Err(StateError::Mixed.into()),
            Condition::StateLost => Err(RecoveryError::AwaitsRestore.into()),
            Condition::Stopped => Err(PipelineError::Stopped),
        }
    }

    pub(crate) fn check_not_averaged(&self) -> Result<(), StateError> {
        match self.state.is_averaged {
            true => Err(StateError::Averaged),
            false => Ok(()),
        }
    }

    /// The parameter at a position of the table.
    pub(crate) fn parameter(&self, position: usize) -> &Parameter {
        &self.table.iter().as_slice()[position]
    }

    pub(crate) fn path_of(&self, position: usize) -> ParameterPath {
        self.parameter(position).path.clone()
    }

    /// The number of the ranks of one replica.
    pub(crate) fn ranks_of_replica(&self) -> usize {
        self.plan.ranks().max(1)
    }
}
