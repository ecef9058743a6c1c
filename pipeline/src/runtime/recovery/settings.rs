//! The settings of a recovery, and a plan for the ranks that are left.

use std::error::Error;
use std::sync::Arc;

use tinderbox_planner::Machine;

use crate::schedule::ScheduleKind;
use crate::{Batch, Plan, PlanError, Planner, Trace};

/// Plans for another number of processes. Its error is the reason for no plan, if one is known.
pub(crate) type Replan = dyn Fn(usize) -> Result<Plan, NoPlan> + Send + Sync;

type NoPlan = Option<Box<dyn Error + Send + Sync>>;

/// The settings of a pipeline that continues when a process of its [world](crate::PipelineBuilder::world) is lost.
///
/// After every step, each rank sends its state to another process while the next step runs, to one on another machine if
/// there is one. A process is lost when it is killed, ends, or sends no heartbeat for longer than the world allows. The other
/// processes then regroup, plan for the remaining processes, move missing values, and continue. The interrupted call returns
/// the same result as without the loss, on the CPU bit for bit. An error or a panic of the program itself is not repeated; it
/// ends all processes.
///
/// A world may have more processes than the plan has ranks. The additional processes at the end are spares: they make all
/// calls, without a stage, and replace lost ranks. Without spares, the next plan is for fewer ranks.
///
/// Memory: a rank keeps its last snapshots by handles, and values that are kept can't be updated in place. So during an
/// update a rank has its state up to three times, and a copy of the optimizer's state on the host until it is sent. Its
/// keeper has the state once, and twice while the next one arrives. After a loss, the earlier snapshots remain until the new
/// keepers have the state.
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
    /// Sends the state after every `steps` steps, at least 1. At most `steps` completed steps are repeated after a loss, and at
    /// most twice that number if another process is lost before new keepers have the state. Default: 1.
    ///
    /// If the steps in between are faster than the sending, the next step waits: use a larger number.
    pub fn every(steps: u64) -> Self {
        let (every, plan) = (steps.max(1), None);
        Self { every, plan }
    }

    /// Sets the function that plans for the remaining processes. Its argument is their number, and its plan may have fewer
    /// ranks. Default: the first plan while there are enough processes for it. For fewer processes, the best contiguous
    /// stages, with the schedule of the first plan if it fits, else 1F1B, and the previous number of replicas, halved until
    /// it divides the ranks.
    ///
    /// The first of the remaining processes plans for all. A step keeps the number of micro-batches of the first plan, because
    /// the losses depend on it: plan with a trace of that number.
    pub fn plan<E: Into<Box<dyn Error + Send + Sync>>>(
        mut self,
        plan: impl Fn(usize) -> Result<Plan, E> + Send + Sync + 'static,
    ) -> Self {
        self.plan = Some(Arc::new(move |processes| {
            plan(processes).map_err(|error| Some(error.into()))
        }));
        self
    }
}

/// Plans for fewer processes than before. Returns the old plan if there are enough processes. Otherwise uses the schedule and
/// the placement of the old plan if they fit, and the old number of replicas, halved until it divides the ranks. Plans for
/// fewer ranks if the model can't be divided among all processes.
pub(crate) fn replan<B: Batch>(
    trace: &Trace<B>,
    old: &Plan,
    kind: ScheduleKind,
    processes: usize,
) -> Result<Plan, NoPlan> {
    if processes >= old.world_size() {
        return Ok(old.clone());
    }
    // The planner may have chosen the number.
    let trace = trace.with_micro_batches(old.step.micro_batches);
    let trace = trace.map_err(|error| NoPlan::Some(error.into()))?;
    let mut first: NoPlan = None;
    for ranks in (1..=processes).rev() {
        for kind in [kind, ScheduleKind::OneFOneB] {
            match plan_of(&trace, old, kind, ranks) {
                Ok(Some(plan)) => return Ok(plan),
                Ok(None) => {}
                Err(error) => first = first.or_else(|| Some(Box::new(error))),
            }
        }
    }
    Err(first)
}

/// Plans for a number of ranks, with the old number of replicas, halved until it divides the ranks.
fn plan_of<B: Batch>(
    trace: &Trace<B>,
    old: &Plan,
    kind: ScheduleKind,
    ranks: usize,
) -> Result<Option<Plan>, PlanError> {
    // The models of the first ranks, even if other ranks remain.
    let models = old.machine.rank_models().iter().cycle().take(ranks);
    let mut machine = Machine::of_ranks(models.copied().collect())?;
    machine.rates = old.machine.rates;
    machine.link = old.machine.link;
    machine.action_ns = old.machine.action_ns;
    let machine = match kind == ScheduleKind::OneFOneB {
        true => machine,
        false => machine.with_chunks(old.machine.chunks(), old.machine.placement())?,
    };
    let mut replicas = old.replicas();
    while !ranks.is_multiple_of(replicas) {
        replicas /= 2;
    }
    let mut planner = Planner::new(trace, &machine)
        .schedule(kind)
        .replicas(replicas)
        .optimizer_states(old.step.optimizer_states)
        .without_programs();
    if old.step.may_recompute {
        planner = planner.may_recompute();
    }
    let plan = planner.plan()?;
    Ok((plan.world_size() == ranks).then_some(plan))
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::{Device, Tensor};
    use tinderbox_deferred::Deferred;

    use super::*;
    use crate::{Outputs, Traceable};

    const SAMPLES: usize = 64;

    fn trace(micro_batches: usize) -> Trace<Tensor<2>> {
        let model = Deferred::new(|device: &Device| -> Vec<Linear> {
            let layer = |_| LinearConfig::new(16, 16).init(device);
            (0..8).map(layer).collect()
        });
        let batch = Tensor::<2>::zeros([SAMPLES, 16], &Device::flex());
        let forward = |layers: &Vec<Linear>, x: Tensor<2>| {
            let y = layers.iter().fold(x, |x, layer| layer.forward(x).tanh());
            Outputs::loss(y.mean())
        };
        let traced = model.unwrap().trace(&batch, micro_batches, forward);
        traced.unwrap()
    }

    /// A plan whose number of micro-batches was chosen is for other micro-batches than the traced one.
    #[test]
    fn the_micro_batches_of_the_old_plan_are_planned() {
        let whole = trace(1);
        let machine = Machine::local(3).unwrap().with_memory_limit(27_000);
        let planner = Planner::new(&whole, &machine).choose_micro_batches();
        let old = planner.plan().unwrap();
        let count = old.step.micro_batches;
        assert!(count > 1 && count < SAMPLES, "{count}");
        let kind = ScheduleKind::OneFOneB;
        let plan = |trace: &Trace<Tensor<2>>| {
            let plan = replan(trace, &old, kind, 2).unwrap();
            (plan.prediction, plan.stages)
        };
        assert!(plan(&whole) == plan(&trace(count)));
        // The whole batch does not fit.
        assert!(Planner::new(&whole, &machine).plan().is_err());
    }
}
