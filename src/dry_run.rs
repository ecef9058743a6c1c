//! What each rank of a plan would read of saved parameters.

use burn::module::Module;
use burn::tensor::Device;
use tinderbox_checkpoint::{CheckpointSource, LoadPlan};
use tinderbox_deferred::{Deferred, Request, Source};
use tinderbox_fake::Region;
use tinderbox_pipeline::Plan;

use crate::DryRunError;
use crate::checkpoints::held_by_ranks;

/// What each rank of a plan would read of a checkpoint or of pretrained weights: bytes, files, and memory
/// at its highest. Reads nothing, and nothing of the model is made.
///
/// # Errors
///
/// [`DryRunError::Plan`] when the plan is for another model; else as the load itself:
/// [`SourceError::Mismatch`](tinderbox_deferred::SourceError::Mismatch) with all that does not fit. What may be missing is
/// left out.
pub fn dry_run<M: Module>(
    model: &Deferred<M>,
    plan: &Plan,
    source: &CheckpointSource,
) -> Result<LoadPlan, DryRunError> {
    let table = model.parameters();
    plan.check_model(table)?;
    let ranks = held_by_ranks(plan, table).into_iter().map(|held| {
        let held = held.into_iter().map(|parameter| Request {
            path: parameter.path.clone(),
            region: Region::whole(&parameter.shape).expect("its elements can be counted"),
            shape: parameter.shape.clone(),
            dtype: parameter.dtype,
            device: Device::flex(),
        });
        held.collect()
    });
    let ranks: Vec<Vec<Request>> = ranks.collect();
    source.check(table, &ranks.concat())?;
    Ok(source.dry_run(&ranks)?)
}
