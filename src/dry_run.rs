//! The bytes that each rank of a plan would read.

use burn::module::Module;
use burn::tensor::Device;
use tinderbox_checkpoint::{CheckpointSource, LoadPlan};
use tinderbox_deferred::{Deferred, Request, Source};
use tinderbox_pipeline::Plan;

use crate::DryRunError;
use crate::checkpoints::held_by_ranks;

/// Returns what each rank of a plan would read from a checkpoint or pretrained weights: bytes, files and peak
/// memory. Reads no tensor and materializes nothing.
///
/// # Errors
///
/// Returns [`DryRunError::Plan`] if the plan is for another model; otherwise the errors of the load itself:
/// [`SourceError::Mismatch`](tinderbox_deferred::SourceError::Mismatch) with all mismatches. Parameters that
/// are allowed to be missing are omitted.
pub fn dry_run<M: Module>(
    model: &Deferred<M>,
    plan: &Plan,
    source: &CheckpointSource,
) -> Result<LoadPlan, DryRunError> {
    let table = model.parameters();
    plan.check_model(table)?;
    let request = |parameter| Request::of(table, parameter, &Device::flex());
    let held = held_by_ranks(plan, table).into_iter();
    let ranks = held.map(|held| held.into_iter().map(request).collect());
    let ranks: Vec<Vec<Request>> = ranks.collect();
    source.check(table, &ranks.concat())?;
    Ok(source.dry_run(&ranks)?)
}
