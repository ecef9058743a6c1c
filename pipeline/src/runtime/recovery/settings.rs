//! The settings of a recovery.

use std::error::Error;
use std::sync::Arc;

use crate::Plan;

/// Plans for another number of processes.
pub(crate) type Replan = dyn Fn(usize) -> Result<Plan, Box<dyn Error + Send + Sync>> + Send + Sync;

/// How a pipeline continues when a process of its [world](crate::PipelineBuilder::world) is lost.
///
/// After every step, each rank sends its state to another process while the next step runs, to one on another machine if there
/// is one. When a process is killed, ends, or sends no heartbeat for longer than the world allows, the others regroup, plan for
/// those that are left, move what is missing, and continue: the call that was interrupted returns what it would have returned, on
/// the CPU bit for bit. An error or a panic of the program itself is not repeated; it ends all processes.
///
/// A world may have more processes than the plan has ranks: those at the end make all calls, without a stage, and take the
/// place of ranks that are lost. Without such spares, the next plan is for fewer ranks.
///
/// Memory: a rank keeps its last snapshots by handles, and values that are kept can't be updated in place, so during an update it
/// has its state up to three times, and a copy of the optimizer's state on the host until it is sent. Its keeper has the
/// state once, and twice while the next one arrives. After a loss, what was kept before stays until the new keepers have the
/// state.
///
/// A state whose rank is lost together with its keeper is gone: the call returns
/// [`RecoveryError::StateLost`](crate::RecoveryError::StateLost), and the pipeline waits for a
/// [restore](crate::Pipeline::restore) of the last checkpoint.
#[derive(Clone, derive_more::Debug)]
#[debug("Recovery {{ every: {every}, has_plan: {} }}", plan.is_some())]
#[must_use]
pub struct Recovery {
    pub(crate) every: u64,
    pub(crate) plan: Option<Arc<Replan>>,
}

impl Default for Recovery {
    fn default() -> Self {
        Self::every(1)
    }
}

impl Recovery {
    /// Sends the state after each of so many steps, at least 1; at most so many completed steps are repeated after a loss,
    /// and as many more if another process is lost before new keepers have the state. Default: 1.
    ///
    /// If the steps between are shorter than it takes to send the state, the next one waits: use a larger number.
    pub fn every(steps: u64) -> Self {
        Self {
            every: steps.max(1),
            plan: None,
        }
    }

    /// Sets the function that plans for the processes that are left; its argument is their number, and its plan may have
    /// fewer ranks. Default: the first plan while there are enough processes for it; for fewer, the best contiguous stages, with
    /// the schedule of the first plan if it fits, else 1F1B, and as many replicas as divide the ranks.
    ///
    /// The first process that is left plans for all.
    pub fn plan<E: Into<Box<dyn Error + Send + Sync>>>(
        mut self,
        plan: impl Fn(usize) -> Result<Plan, E> + Send + Sync + 'static,
    ) -> Self {
        self.plan = Some(Arc::new(move |processes| {
            plan(processes).map_err(Into::into)
        }));
        self
    }
}
