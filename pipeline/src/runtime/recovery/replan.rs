//! A plan for the ranks that are left.

use tinderbox_planner::Machine;

use crate::batch::Batch;
use crate::plan::{Plan, Planner};
use crate::schedule::{Placement, ScheduleKind};
use crate::trace::Trace;
use crate::{PipelineError, PlanError};

/// Plans for another number of ranks as before: this schedule and the placement of the old plan if they fit, and as many
/// replicas, or half of them and so on.
pub(super) fn replan<B: Batch>(
    trace: &Trace<B>,
    old: &Plan,
    kind: ScheduleKind,
    ranks: usize,
    micro_batches: usize,
) -> Result<Plan, PipelineError> {
    let file = old.file();
    let models = file.machine.rank_models().iter().cycle().take(ranks);
    let mut machine = Machine::of_ranks(models.copied().collect()).map_err(PlanError::from)?;
    machine.rates = file.machine.rates;
    machine.link = file.machine.link;
    machine.action_ns = file.machine.action_ns;
    let chunks = (file.machine.chunks(), file.machine.placement());
    let same = machine.clone().with_chunks(chunks.0, chunks.1);
    let plain = machine.with_chunks(1, Placement::Loop);
    let choices = [(same, kind), (plain, ScheduleKind::OneFOneB)];
    let mut first = None;
    for (machine, kind) in choices {
        let machine = machine.map_err(PlanError::from)?;
        let mut replicas = old.replica_count();
        while replicas > 0 {
            if ranks.is_multiple_of(replicas) {
                let mut planner = Planner::new(trace, &machine)
                    .schedule(kind)
                    .micro_batches(micro_batches)
                    .replicas(replicas)
                    .optimizer_states(file.step.optimizer_states)
                    .without_programs();
                if file.step.may_recompute {
                    planner = planner.may_recompute();
                }
                match planner.plan() {
                    Ok(plan) if plan.world_size() == ranks => return Ok(plan),
                    Ok(_) => {}
                    Err(error) => first = first.or(Some(error)),
                }
            }
            replicas /= 2;
        }
    }
    Err(PipelineError::NoPlan {
        ranks,
        source: first.map(Box::new),
    })
}
