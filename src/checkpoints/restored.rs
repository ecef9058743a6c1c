//! A checkpoint back into the ranks of a pipeline.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::DType;
use tinderbox_checkpoint::{Checkpoint, Latest, Role};
use tinderbox_deferred::{Deferred, ParameterPath};
use tinderbox_pipeline::schedule::RankIndex;
use tinderbox_pipeline::{Batch, Pipeline, SavedState, Stage};

use super::Resumed;
use super::scalars::{from_saved, scale_of};
use crate::{CheckpointsError, LoadRankError};

fn parameters_of<M: Module>(model: &Deferred<M>) -> Vec<(ParameterPath, Vec<u64>, DType)> {
    let parameters = model.parameters().distinct();
    parameters
        .map(|p| (p.path.clone(), p.shape.clone(), p.dtype))
        .collect()
}

/// Restores one checkpoint, in two phases: every rank loads beside what it has; only when all could,
/// all change over.
pub(super) fn restore<M, B>(
    pipeline: &mut Pipeline<M, B>,
    latest: Latest,
) -> Result<Resumed, CheckpointsError>
where
    M: Module + Sync + 'static,
    B: Batch,
{
    let Latest {
        checkpoint,
        skipped,
    } = latest;
    let (expected, found) = (checkpoint.manifest().seed, pipeline.seed().value());
    if expected != found {
        return Err(CheckpointsError::Seed { expected, found });
    }
    checkpoint.check_model(&parameters_of(pipeline.model()))?;
    let resumed = Resumed {
        step: checkpoint.step(),
        data_position: checkpoint.manifest().data_position,
        dir: checkpoint.dir().to_owned(),
        skipped: skipped.iter().map(|error| error.chain()).collect(),
    };
    let scale = scale_of(&checkpoint);
    let checkpoint = Arc::new(checkpoint);
    let prepared = pipeline.on_ranks(move |_, stages| {
        stages
            .iter_mut()
            .try_for_each(|stage| prepare(&checkpoint, stage))
    })?;
    for (rank, result) in prepared.into_iter().enumerate() {
        let (rank, path) = (RankIndex::new(rank), resumed.dir.clone());
        result.map_err(|source| CheckpointsError::LoadRank {
            rank,
            path,
            source: Box::new(source),
        })?;
    }
    pipeline.on_ranks(|_, stages| stages.iter_mut().for_each(Stage::commit_restore))?;
    pipeline.resume_at(resumed.step);
    if let Some((factor, steps)) = scale {
        pipeline.resume_loss_scale(factor, steps);
    }
    Ok(resumed)
}

fn prepare(checkpoint: &Checkpoint, stage: &mut Stage) -> Result<(), LoadRankError> {
    let prefixes: Vec<String> = stage
        .parameters()
        .paths()
        .map(|path| format!("optimizer.{path}."))
        .collect();
    let ours = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let names: Vec<String> = checkpoint
        .tensors(Role::State)
        .map(|tensor| tensor.name.clone())
        .filter(|name| ours(name))
        .collect();
    let data = checkpoint.state(&names)?;
    let scalars = checkpoint.scalars().iter().filter(|(name, _)| ours(name));
    let saved = SavedState {
        tensors: names.into_iter().zip(data).collect(),
        scalars: scalars
            .map(|(name, value)| (name.clone(), from_saved(*value)))
            .collect(),
    };
    stage.prepare_restore(checkpoint, &saved)?;
    Ok(())
}
