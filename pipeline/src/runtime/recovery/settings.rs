//! The settings of a recovery, and a plan for the ranks that are left.

use std::error::Error;
use std::sync::Arc;

use tinderbox_planner::Machine;

use crate::PlanError;
use crate::batch::Batch;
use crate::plan::{Plan, Planner};
use crate::schedule::ScheduleKind;
use crate::trace::Trace;

/// Plans for another number of processes. Its error is the reason why there is no plan, if one is known.
pub(crate) type Replan = dyn Fn(usize) -> Result<Plan, NoPlan> + Send + Sync;

type NoPlan = Option<Box<dyn Error + Send + Sync>>;

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
            plan(processes).map_err(|error| Some(error.into()))
        }));
        self
    }
}

/// Plans for fewer processes than before: this schedule and the placement of the old plan if they fit, and as many replicas,
/// or half of them and so on. If there are enough processes, the old plan itself; if the model can't be divided among all of
/// them, a plan for fewer.
pub(crate) fn replan<B: Batch>(
    trace: &Trace<B>,
    old: &Plan,
    kind: ScheduleKind,
    processes: usize,
    micro_batches: usize,
) -> Result<Plan, NoPlan> {
    if processes >= old.world_size() {
        return Ok(old.clone());
    }
    let mut first: NoPlan = None;
    for ranks in (1..=processes).rev() {
        for kind in [kind, ScheduleKind::OneFOneB] {
            match plan_of(trace, old, kind, ranks, micro_batches) {
                Ok(Some(plan)) => return Ok(plan),
                Ok(None) => {}
                Err(error) => first = first.or_else(|| Some(Box::new(error))),
            }
        }
    }
    Err(first)
}

/// Plans for a number of ranks, with as many replicas as divide it.
fn plan_of<B: Batch>(
    trace: &Trace<B>,
    old: &Plan,
    kind: ScheduleKind,
    ranks: usize,
    micro_batches: usize,
) -> Result<Option<Plan>, PlanError> {
    let file = old.file();
    let models = file.machine.rank_models().iter().cycle().take(ranks);
    let mut machine = Machine::of_ranks(models.copied().collect())?;
    machine.rates = file.machine.rates;
    machine.link = file.machine.link;
    machine.action_ns = file.machine.action_ns;
    let machine = match kind == ScheduleKind::OneFOneB {
        true => machine,
        false => machine.with_chunks(file.machine.chunks(), file.machine.placement())?,
    };
    let mut replicas = old.replica_count();
    while !ranks.is_multiple_of(replicas) {
        replicas /= 2;
    }
    let mut planner = Planner::new(trace, &machine)
        .schedule(kind)
        .micro_batches(micro_batches)
        .replicas(replicas)
        .samples(file.samples)
        .optimizer_states(file.step.optimizer_states)
        .without_programs();
    if file.step.may_recompute {
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

    fn trace(samples: usize) -> Trace<Tensor<2>> {
        let model = Deferred::new(|device: &Device| -> Vec<Linear> {
            let layer = |_| LinearConfig::new(16, 16).init(device);
            (0..8).map(layer).collect()
        });
        let example = Tensor::<2>::zeros([samples, 16], &Device::flex());
        let forward = |layers: &Vec<Linear>, x: Tensor<2>| {
            let y = layers.iter().fold(x, |x, layer| layer.forward(x).tanh());
            Outputs::loss(y.mean())
        };
        model.unwrap().trace(&example, forward).unwrap()
    }

    /// A plan whose number of micro-batches was chosen is for other batches than the traced one.
    #[test]
    fn the_micro_batches_of_the_old_plan_are_planned() {
        let whole = trace(SAMPLES);
        let batch = Tensor::<2>::zeros([SAMPLES, 16], &Device::flex());
        let machine = Machine::local(3).unwrap().with_memory(27_000);
        let planner = Planner::new(&whole, &machine).choose_micro_batches(&batch);
        let old = planner.plan().unwrap();
        let count = old.file().step.micro_batches;
        assert!(count > 1 && count < SAMPLES, "{count}");
        let kind = ScheduleKind::OneFOneB;
        let plan = |trace: &Trace<Tensor<2>>| {
            let plan = replan(trace, &old, kind, 2, count).unwrap();
            (plan.file().prediction.clone(), plan.stages().to_vec())
        };
        assert!(plan(&whole) == plan(&trace(SAMPLES / count)));
        // The whole batch does not fit.
        let other = Planner::new(&whole, &machine).micro_batches(count).plan();
        assert!(other.is_err());
    }
}
