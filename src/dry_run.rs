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
    let ranks = held_by_ranks(plan, table).into_iter().map(|held| {
        let held = held.into_iter();
        held.map(|parameter| Request::of(table, parameter, &Device::flex()))
            .collect()
    });
    let of_replica: Vec<Vec<Request>> = ranks.collect();
    let ranks = vec![of_replica; plan.replica_count()].concat();
    source.check(table, &ranks.concat())?;
    Ok(source.dry_run(&ranks)?)
}
