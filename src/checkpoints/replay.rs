//! Runs the programs of the step after a checkpoint again.

use burn::module::Module;
use tinderbox_checkpoint::{Checkpoint, LoadOptions};
use tinderbox_deferred::random::Seed;
use tinderbox_pipeline::{Batch, LossScale, PipelineBuilder, ReplayedStep, StepReplay};

use super::scalars::{is_averaged, scale_of};
use crate::CheckpointsError;

/// Runs the programs of one micro-batch of the step after a checkpoint again, alone, one after the other in this process, with
/// the values that the run had: see [`PipelineBuilder::replay`]. Parameters, seed and loss scale are those of the checkpoint; plan
/// and number of replicas may be others than those of the run, its number of micro-batches, precision and batch may not. A stage
/// is read before each of its programs, so the model does not have to fit memory.
///
/// # Errors
///
/// When the checkpoint is of another model, or has averages in place of parameters; as [`PipelineBuilder::replay`].
pub fn replay<M: Module + Sync + 'static, B: Batch>(
    checkpoint: Checkpoint,
    builder: PipelineBuilder<M, B>,
    batch: B,
    micro_batch: usize,
) -> Result<StepReplay, CheckpointsError> {
    if is_averaged(&checkpoint) {
        let path = checkpoint.dir().to_owned();
        return Err(CheckpointsError::Averaged { path });
    }
    let builder = builder.seed(Seed::new(checkpoint.manifest().seed));
    let builder = match scale_of(&checkpoint) {
        Some((factor, _)) => builder.loss_scale(LossScale::fixed(factor)),
        None => builder,
    };
    let at = ReplayedStep {
        step: checkpoint.step(),
        micro_batch,
    };
    let source = checkpoint.source(LoadOptions::default())?;
    Ok(builder.source(source).replay(at, batch)?)
}
