//! Checks whether a plan is for a model and its forward, and whether a rank holds the parameters of a module.

use burn::module::Module;
use tinderbox_deferred::{MaterializeError, ParameterTable};
use tinderbox_planner::Plan;

use super::build::{graph_digest, plan_parameters};
use super::text;
use crate::cut::Layout;
use crate::{Batch, JointGraph, NotHeld, PlanError, Trace};

/// Checks that a plan is for a model with these parameters.
///
/// # Errors
///
/// [`PlanError`] with the parameters that differ, or the parameter that is not owned exactly once.
pub fn check_model(plan: &Plan, table: &ParameterTable) -> Result<(), PlanError> {
    layout(plan, table).map(drop)
}

/// Checks that a plan is for this forward, if it was created for the same kind of batch.
fn check_program(plan: &Plan, joint: &JointGraph) -> Result<(), PlanError> {
    if joint.key().to_string() != plan.program || graph_digest(joint) == plan.graph {
        return Ok(());
    }
    let found = text::forward(joint);
    let longest = found.len().max(plan.forward.len());
    let differs = |at: &usize| found.get(*at) != plan.forward.get(*at);
    let position = (0..longest).find(differs).unwrap_or(longest);
    Err(PlanError::OtherForward {
        position,
        expected: plan.forward.get(position).cloned(),
        found: found.get(position).cloned(),
    })
}

/// Checks that a plan is for the forward of a trace, if it was created for micro-batches like the traced ones, with any number
/// of samples.
///
/// # Errors
///
/// [`PlanError::OtherForward`] with the first operation that differs.
pub fn check_trace<B: Batch>(plan: &Plan, trace: &Trace<B>) -> Result<(), PlanError> {
    let traced = trace.example_program()?;
    match plan.samples {
        Some(samples) if traced.key().to_string() != plan.program => {
            // A batch that can't have this number of samples is not the planned batch.
            let program = trace.program_of_samples(samples);
            program.map_or(Ok(()), |program| check_program(plan, &program))
        }
        _ => check_program(plan, &traced),
    }
}

/// Checks that a rank holds all parameters of a module, so that its forward does not panic in Burn.
///
/// # Errors
///
/// [`PlanError::NotMaterialized`] with every parameter that is fake, and the rank that owns it.
pub fn check_materialized<M: Module>(
    plan: &Plan,
    rank: usize,
    module: &M,
) -> Result<(), PlanError> {
    let found = tinderbox_deferred::check_materialized(module);
    let Err(MaterializeError::NotMaterialized { paths }) = found else {
        return Ok(());
    };
    let parameters = paths.into_iter().map(|path| NotHeld {
        owner: plan.owner(&path).map(|stage| stage.rank),
        path,
    });
    let parameters = parameters.collect();
    Err(PlanError::NotMaterialized { rank, parameters })
}

/// Returns the layout of a plan's stages, checked against the parameters of a model.
pub fn layout(plan: &Plan, table: &ParameterTable) -> Result<Layout, PlanError> {
    plan.check_shards()?;
    plan.check_parameters(&plan_parameters(table))?;
    let mut layout = Layout::of_plan(table, &plan.stages)?;
    let count = plan.forward.len();
    let mut stages = vec![None; count];
    for (index, stage) in plan.stages.iter().enumerate() {
        for (from, to) in &stage.operations {
            let end = count.min(*to);
            stages[end.min(*from)..end].fill(Some(index));
        }
    }
    // A file without the operations has only the owners of parameters.
    let stages = stages.into_iter().collect::<Option<Vec<usize>>>();
    layout.operations = stages.map(|stages| (plan.structure.clone(), stages));
    layout.replicas = plan.replicas();
    Ok(layout)
}
