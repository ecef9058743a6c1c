//! Runs the programs of the step after a checkpoint again.

use burn::module::Module;
use tinderbox_checkpoint::{Checkpoint, LoadOptions};
use tinderbox_pipeline::{Batch, PipelineBuilder, StepReplay};

use super::settings::{AVERAGED, is_set, micro_batches_of, scale_of, warn_of_numerics};
use crate::CheckpointsError;

/// The name of the setting of a replay that has to be the same as in the run.
const PRECISION: &str = "precision";

/// Runs the programs of the step after a checkpoint again, alone, one after the other in this process, with the values that the
/// run had: see [`PipelineBuilder::replay`]. Step, parameters and loss scale are the checkpoint's; seed, precision, number
/// of micro-batches and batch have to be the run's; plan and number of replicas may be others. A stage is read before its
/// programs, so the model does not have to fit memory.
///
/// # Errors
///
/// When the checkpoint has another seed, precision or number of micro-batches, is of another model, or has averages in place of parameters;
/// as [`PipelineBuilder::replay`].
pub fn replay_step<M: Module + Sync + 'static, B: Batch>(
    checkpoint: Checkpoint,
    builder: PipelineBuilder<M, B>,
    batch: B,
) -> Result<StepReplay, CheckpointsError> {
    if is_set(&checkpoint, AVERAGED) {
        let path = checkpoint.dir().to_owned();
        return Err(CheckpointsError::Averaged { path });
    }
    let builder = match scale_of(&checkpoint) {
        Some((factor, steps)) => builder.resume_loss_scale(factor, steps),
        None => builder,
    };
    let source = checkpoint.source(LoadOptions::default())?;
    let replay = builder.source(source).replay(checkpoint.step(), batch)?;
    let (expected, found) = (checkpoint.manifest().seed, replay.seed().value());
    if expected != found {
        return Err(CheckpointsError::Seed { expected, found });
    }
    let saved = checkpoint.manifest().settings();
    let differs = |saved: &&String| **saved != replay.precision();
    if let Some(saved) = saved.get(PRECISION).filter(differs) {
        return Err(CheckpointsError::Precision {
            expected: saved.clone(),
            found: replay.precision().to_owned(),
        });
    }
    warn_of_numerics(&checkpoint);
    let found = replay.most_micro_batches() as u64;
    match micro_batches_of(&checkpoint).filter(|expected| *expected != found) {
        Some(expected) => Err(CheckpointsError::MicroBatches { expected, found }),
        None => Ok(replay),
    }
}
