//! Saves and resumes a pipeline: what `pipeline` and `checkpoint` do together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::{DType, Device};
use burn_pack::Scalar as BurnScalar;
use tinderbox_checkpoint::{
    Attempt, AttemptHandle, Checkpoint, CheckpointMeta, Role, SaveTensor, Scalar, clean,
};
use tinderbox_deferred::{Deferred, ParameterPath};
use tinderbox_pipeline::schedule::RankIndex;
use tinderbox_pipeline::{Batch, Pipeline, SavedState, Stage};

use crate::{CheckpointsError, LoadRankError, SaveRankError};

/// How long the ranks may take to write their shards: as long as a slow disk needs for a large stage.
const SAVE_TIMEOUT: Duration = Duration::from_secs(3600);

/// The checkpoints of a run: one directory per step, in one directory.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    dir: PathBuf,
    every: Option<u64>,
}

/// Where a run was resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Training steps that the checkpoint has behind it.
    pub step: u64,
    /// How far the data was read, in the caller's unit.
    pub data_position: u64,
    /// The checkpoint.
    pub dir: PathBuf,
}

impl Checkpoints {
    /// Opens the directory of a run, which is made when something is saved, and removes what a run
    /// that was killed left unpublished there.
    ///
    /// # Errors
    ///
    /// When leftovers can't be removed.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, CheckpointsError> {
        let dir = dir.into();
        if dir.exists() {
            clean(&dir).map_err(|source| CheckpointsError::Open {
                path: dir.clone(),
                source: Box::new(source),
            })?;
        }
        Ok(Self { dir, every: None })
    }

    /// Saves after every `steps` steps; see [`Checkpoints::after_step`]. 0 saves never.
    #[must_use]
    pub fn every(mut self, steps: u64) -> Self {
        self.every = (steps > 0).then_some(steps);
        self
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The newest usable checkpoint, `None` when there is none: for its seed and data position, or as
    /// a source of parameters.
    ///
    /// # Errors
    ///
    /// When there are checkpoints, and none can be used.
    pub fn latest(&self) -> Result<Option<Checkpoint>, CheckpointsError> {
        Ok(Checkpoint::latest(&self.dir)?)
    }

    /// Saves if a step that is due was done. `data_position` says how far the data was read.
    ///
    /// # Errors
    ///
    /// As [`Checkpoints::save`].
    pub fn after_step<M, B>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        data_position: u64,
    ) -> Result<Option<PathBuf>, CheckpointsError>
    where
        M: Module + Sync + 'static,
        B: Batch,
    {
        match self.every {
            Some(every) if pipeline.steps().is_multiple_of(every) => {
                self.save(pipeline, data_position).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Saves parameters, optimizer state, step, seed and data position: one shard per rank. Returns
    /// the directory of the checkpoint, which is whole and durable then.
    ///
    /// # Errors
    ///
    /// When the step was saved before, or the disk fails. Nothing is published then, and earlier
    /// checkpoints are as they were.
    pub fn save<M, B>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        data_position: u64,
    ) -> Result<PathBuf, CheckpointsError>
    where
        M: Module + Sync + 'static,
        B: Batch,
    {
        let step = pipeline.steps();
        let failed = |source| CheckpointsError::Save {
            step,
            source: Box::new(source),
        };
        let ranks = pipeline.plan().stages().len() as u32;
        let mut meta = CheckpointMeta::new(step, ranks);
        meta.seed = pipeline.seed().value();
        meta.data_position = data_position;
        meta.metadata = serde_json::json!({ "plan": pipeline.plan() });
        let attempt = Attempt::begin(&self.dir, meta).map_err(failed)?;
        let handle = attempt.handle();
        let saved = pipeline.on_ranks(move |rank, stages| save_rank(&handle, rank, stages))?;
        for (rank, result) in saved.into_iter().enumerate() {
            let rank = RankIndex::new(rank);
            result.map_err(|source| CheckpointsError::SaveRank {
                rank,
                step,
                source: Box::new(source),
            })?;
        }
        attempt.publish(SAVE_TIMEOUT).map_err(failed)
    }

    /// Restores the newest usable checkpoint, whatever number of ranks saved it. `None` when there is
    /// none: the pipeline is then as it was started.
    ///
    /// # Errors
    ///
    /// When no checkpoint can be used, it is of another model or seed, or a byte is damaged. Nothing
    /// of the pipeline has changed then.
    pub fn resume<M, B>(
        &self,
        pipeline: &mut Pipeline<M, B>,
    ) -> Result<Option<Resumed>, CheckpointsError>
    where
        M: Module + Sync + 'static,
        B: Batch,
    {
        let Some(checkpoint) = self.latest()? else {
            return Ok(None);
        };
        restore(pipeline, checkpoint).map(Some)
    }
}

/// The whole model on a device, with the parameters of a checkpoint, whatever number of ranks saved
/// it.
///
/// # Errors
///
/// When the checkpoint's parameters are not exactly the model's (every missing and extra one, shape
/// and dtype is listed), or a byte is damaged.
pub fn load_module<M: Module>(
    model: &Deferred<M>,
    checkpoint: &Checkpoint,
    device: &Device,
) -> Result<M, CheckpointsError> {
    checkpoint.check_model(&parameters_of(model))?;
    model
        .materialize(device, checkpoint)
        .map_err(|source| CheckpointsError::Materialize { source })
}

fn parameters_of<M: Module>(model: &Deferred<M>) -> Vec<(ParameterPath, Vec<u64>, DType)> {
    let parameters = model.parameters().distinct();
    parameters
        .map(|p| (p.path.clone(), p.shape.clone(), p.dtype))
        .collect()
}

/// Restores one checkpoint, in two phases: every rank loads beside what it has; only when all could,
/// all change over.
fn restore<M, B>(
    pipeline: &mut Pipeline<M, B>,
    checkpoint: Checkpoint,
) -> Result<Resumed, CheckpointsError>
where
    M: Module + Sync + 'static,
    B: Batch,
{
    let (expected, found) = (checkpoint.manifest().seed, pipeline.seed().value());
    if expected != found {
        return Err(CheckpointsError::Seed { expected, found });
    }
    checkpoint.check_model(&parameters_of(pipeline.model()))?;
    let resumed = Resumed {
        step: checkpoint.step(),
        data_position: checkpoint.manifest().data_position,
        dir: checkpoint.dir().to_owned(),
    };
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
    Ok(resumed)
}

fn save_rank(
    handle: &AttemptHandle,
    rank: RankIndex,
    stages: &mut [Stage],
) -> Result<(), SaveRankError> {
    let mut tensors = Vec::new();
    let mut scalars = BTreeMap::new();
    for stage in stages {
        for (path, value) in stage.parameters().values() {
            tensors.push(SaveTensor::whole(
                path.as_str(),
                Role::Model,
                value.to_data()?,
            ));
        }
        let state = stage.optimizer_state();
        let state_tensors = state.tensors.into_iter();
        tensors
            .extend(state_tensors.map(|(name, data)| SaveTensor::whole(name, Role::State, data)));
        scalars.extend(
            state
                .scalars
                .into_iter()
                .map(|(name, value)| (name, to_saved(value))),
        );
    }
    handle.write_rank(rank.index() as u32, &tensors, &scalars)?;
    Ok(())
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

fn to_saved(value: BurnScalar) -> Scalar {
    match value {
        BurnScalar::Int(value) => Scalar::Int(value),
        BurnScalar::UInt(value) => Scalar::Uint(value),
        BurnScalar::Float(value) => Scalar::Float(value),
        BurnScalar::Bool(value) => Scalar::Bool(value),
    }
}

fn from_saved(value: Scalar) -> BurnScalar {
    match value {
        Scalar::Int(value) => BurnScalar::Int(value),
        Scalar::Uint(value) => BurnScalar::UInt(value),
        Scalar::Float(value) => BurnScalar::Float(value),
        Scalar::Bool(value) => BurnScalar::Bool(value),
    }
}
