//! Resumes a run from its newest undamaged checkpoint, and replays the step after a checkpoint.

use std::error::Error;
use std::path::PathBuf;

use burn::module::Module;
use burn::tensor::TensorData;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tinderbox_checkpoint::{
    Checkpoint, CheckpointSource, ErrorClass, Latest, LoadError, LoadOptions, Role, Skipped,
    TensorEntry,
};
use tinderbox_deferred::{Observer, ParameterPath, random::Seed};
use tinderbox_pipeline::{
    Batch, Pipeline, PipelineBuilder, PipelineError, SavedOptimizer, StateError, StateFields,
    StateTensor, StepRates, StepReplay,
};
use tinderbox_world::with_causes;

use super::Checkpoints;
use super::settings::{
    AVERAGED, Expected, from_saved, is_set, micro_batches_of, rates_of, scale_of, warn_of_numerics,
};
use crate::error::CheckpointsError;

impl Checkpoints {
    /// Restores the newest undamaged checkpoint, which any number of ranks has saved. Skips newer, damaged checkpoints
    /// and sets them aside, so that their steps can be saved again; the result lists them, and each causes a
    /// `tracing` warning. Returns `None` if there is no checkpoint: the pipeline is unchanged. A
    /// pipeline without an optimizer does not read optimizer state.
    ///
    /// Memory, in addition to the pipeline: the bytes of the largest parameter for each rank. Each value replaces
    /// the old value as soon as it is read.
    ///
    /// In a [world](Self::in_world) of processes, the first process chooses the checkpoint. No process changes anything before
    /// all processes have found that it fits. If data is found to be damaged after that, no older checkpoint is tried: start
    /// the processes again.
    ///
    /// # Errors
    ///
    /// Returns an error if the newest undamaged checkpoint is of another model, seed or version of the format, if a
    /// [setting](Pipeline::run_settings) differs that may not [change](Self::allow_changes), or if the store fails or denies
    /// access. The pipeline is unchanged, and no older step is used. Returns [`CheckpointsError::Mixed`] if a value could not
    /// be read after other values were replaced, and no older checkpoint could be restored instead: the pipeline is unusable.
    pub fn resume<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
    ) -> Result<Option<Resumed>, CheckpointsError> {
        self.wait()?;
        if let Some(world) = &self.world {
            return self.resume_in_world(world, pipeline);
        }
        let Some(latest) = self.run.latest()? else {
            return Ok(None);
        };
        let failed = match self.restore_latest(pipeline, latest) {
            Err(failed @ CheckpointsError::LoadRank { .. }) => failed,
            done => return done.map(Some),
        };
        let mixed = |source| CheckpointsError::Mixed {
            path: self.run.place(),
            source: Box::new(source),
        };
        if LoadError::class_in(&failed) != Some(ErrorClass::Damaged) {
            return Err(mixed(failed));
        }
        tracing::warn!(
            error = with_causes(&failed),
            "a checkpoint is damaged: searching for an undamaged one"
        );
        // Reads all data of each checkpoint.
        let restored = match self.run.latest_verified() {
            Ok(Some(latest)) => self.restore_latest(pipeline, latest),
            Ok(None) => Err(failed),
            Err(error) => Err(error.into()),
        };
        restored.map(Some).map_err(mixed)
    }

    fn restore_latest<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        latest: Latest,
    ) -> Result<Resumed, CheckpointsError> {
        let source = prepare(pipeline, &latest.checkpoint, &self.settings)?;
        let mut resumed = restore(pipeline, &latest.checkpoint, source)?;
        // After the restore, which shows that another checkpoint is usable.
        resumed.skipped = self.placed(self.set_aside(&latest.skipped));
        Ok(resumed)
    }

    /// Sets damaged checkpoints aside. The results have names instead of locations, because a path that is not UTF-8 can't be
    /// sent to other processes: see [`placed`](Self::placed).
    pub(super) fn set_aside(&self, skipped: &[Skipped]) -> Vec<SkippedCheckpoint> {
        let set_aside = skipped.iter().map(|Skipped { step, dir, reason }| {
            let moved = self.run.set_aside(*step).unwrap_or_else(|error| {
                tracing::warn!(
                    step, dir = %dir.display(), error = with_causes(&error),
                    "a damaged checkpoint could not be set aside: its step can't be saved again"
                );
                None
            });
            if let Some(to) = &moved {
                tracing::warn!(
                    step, from = %dir.display(), to = %to.display(), reason = %reason.chain(),
                    "set a damaged checkpoint aside"
                );
            }
            SkippedCheckpoint {
                step: *step,
                reason: reason.chain(),
                set_aside: moved.and_then(|to| to.file_name().map(PathBuf::from)),
            }
        });
        set_aside.collect()
    }

    /// Replaces the names of checkpoints that were set aside by their locations.
    pub(super) fn placed(&self, mut skipped: Vec<SkippedCheckpoint>) -> Vec<SkippedCheckpoint> {
        for name in skipped.iter_mut().filter_map(|one| one.set_aside.as_mut()) {
            *name = self.run.place().join(&*name);
        }
        skipped
    }
}

/// The result of resuming a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Resumed {
    /// The number of completed training steps.
    pub step: u64,
    /// The position in the training data, in the caller's unit.
    pub data_position: u64,
    /// The metadata of the saved [`RunProgress`](super::RunProgress); `null` without metadata.
    pub metadata: Value,
    /// The learning rates of the last step, if the checkpoint has them.
    pub learning_rates: Option<StepRates>,
    /// The checkpoint.
    pub dir: PathBuf,
    /// The newer, damaged checkpoints, newest first.
    pub skipped: Vec<SkippedCheckpoint>,
}

/// A damaged checkpoint that was skipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedCheckpoint {
    /// The step, which can be saved again.
    pub step: u64,
    /// The reason, on one line.
    pub reason: String,
    /// The current location of the files, where they are neither used as a checkpoint nor removed
    /// automatically. `None` if another process has removed them, or if they could not be moved: a
    /// `tracing` warning then has the reason, and the step can't be saved.
    pub set_aside: Option<PathBuf>,
}

pub(super) type Failed = Box<dyn Error + Send + Sync>;

/// Checks that a checkpoint fits a pipeline, without reading values; returns the source of the values.
pub(super) fn prepare<M: Module + Sync + 'static, B: Batch>(
    pipeline: &Pipeline<M, B>,
    checkpoint: &Checkpoint,
    settings: &Expected,
) -> Result<CheckpointSource, CheckpointsError> {
    check_seed(checkpoint, pipeline.seed())?;
    if pipeline.has_optimizer() {
        check_not_averaged(checkpoint)?;
    }
    let source = checkpoint.source(LoadOptions::default())?;
    let parameters = pipeline.model().parameters().distinct();
    let parameters = parameters.map(|p| (p.path.clone(), p.shape.clone(), p.dtype));
    source.check_model(&parameters.collect::<Vec<_>>())?;
    // Without an optimizer, nothing is trained.
    if pipeline.has_optimizer() {
        settings.check(checkpoint, pipeline.run_settings())?;
    }
    warn_of_numerics(checkpoint);
    check_state(checkpoint, pipeline.keeps_optimizer_state())?;
    Ok(source)
}

/// Refuses a checkpoint of a run with another seed.
pub(super) fn check_seed(checkpoint: &Checkpoint, seed: Seed) -> Result<(), CheckpointsError> {
    let (expected, found) = (checkpoint.manifest().seed, seed.value());
    match expected == found {
        true => Ok(()),
        false => Err(CheckpointsError::Seed { expected, found }),
    }
}

/// Refuses a checkpoint that has averages in place of the parameters.
pub(super) fn check_not_averaged(checkpoint: &Checkpoint) -> Result<(), CheckpointsError> {
    if is_set(checkpoint, AVERAGED) {
        let path = checkpoint.dir().to_owned();
        return Err(CheckpointsError::Averaged { path });
    }
    Ok(())
}

/// Refuses a checkpoint without the state of an optimizer that keeps some.
pub(super) fn check_state(checkpoint: &Checkpoint, is_kept: bool) -> Result<(), CheckpointsError> {
    let mut scalars = checkpoint.scalars().keys();
    let has_state = checkpoint.tensors(Role::State).next().is_some()
        || scalars.any(|name| name.starts_with("optimizer."));
    // With a loss scale, all steps so far may have been skipped.
    let has_stepped = checkpoint.step() > 0 && scale_of(checkpoint).is_none();
    if is_kept && has_stepped && !has_state {
        let path = checkpoint.dir().to_owned();
        return Err(CheckpointsError::NoOptimizerState { path });
    }
    Ok(())
}

/// Restores the values of a prepared checkpoint in place.
pub(super) fn restore<M: Module + Sync + 'static, B: Batch>(
    pipeline: &mut Pipeline<M, B>,
    checkpoint: &Checkpoint,
    source: CheckpointSource,
) -> Result<Resumed, CheckpointsError> {
    let path = checkpoint.dir().to_owned();
    let restored = pipeline.restore(source, State(checkpoint.clone()));
    restored.map_err(|error| match error {
        PipelineError::State(StateError::Restore { rank, source }) => {
            let source = Box::new(source);
            CheckpointsError::Fit { rank, path, source }
        }
        PipelineError::State(StateError::PartlyRestored { rank, source }) => {
            let source = Box::new(source);
            CheckpointsError::LoadRank { rank, path, source }
        }
        error => error.into(),
    })?;
    pipeline.resume_at(checkpoint.step());
    let learning_rates = rates_of(checkpoint);
    if let Some(rates) = &learning_rates {
        pipeline.resume_learning_rates(rates.clone());
    }
    if let Some((factor, steps)) = scale_of(checkpoint) {
        pipeline.resume_loss_scale(factor, steps);
    }
    Ok(Resumed {
        step: checkpoint.step(),
        data_position: checkpoint.manifest().data_position,
        metadata: checkpoint.manifest().metadata(),
        learning_rates,
        dir: checkpoint.dir().to_owned(),
        skipped: Vec::new(),
    })
}

/// The optimizer's state in a checkpoint.
pub(super) struct State(pub(super) Checkpoint);

impl State {
    fn prefix(path: &ParameterPath) -> String {
        format!("optimizer.{path}.")
    }

    /// Returns whether a tensor or scalar belongs to the state of this parameter. The path of another parameter may begin with
    /// this path, as the paths of LoRA adapters begin with the path of the weight.
    fn is_own(&self, path: &ParameterPath, prefix: &str, name: &str) -> bool {
        let fields = name.strip_prefix(prefix).unwrap_or_default();
        let mut dots = fields.match_indices('.');
        !dots.any(|(dot, _)| {
            let longer = format!("{path}.{}", &fields[..dot]);
            self.0.tensor(Role::Model, &longer).is_some()
        })
    }

    /// Returns the tensors of a parameter's state.
    fn tensors<'a>(&'a self, path: &ParameterPath, prefix: &str) -> Vec<&'a TensorEntry> {
        let is_own = |tensor: &&TensorEntry| self.is_own(path, prefix, &tensor.name);
        self.0.state_under(prefix).filter(is_own).collect()
    }

    /// Reads the states of all parameters at once; returns the tensors of each.
    fn read_each(
        &self,
        paths: &[&ParameterPath],
        read: impl FnOnce(&[&String]) -> Result<Vec<TensorData>, LoadError>,
    ) -> Result<Vec<Vec<TensorData>>, Failed> {
        let tensors = |path: &&ParameterPath| self.tensors(path, &Self::prefix(path));
        let tensors: Vec<Vec<&TensorEntry>> = paths.iter().map(tensors).collect();
        let names = tensors.iter().flatten().map(|tensor| &tensor.name);
        let mut values = read(&names.collect::<Vec<_>>())?.into_iter();
        let of_each = |count| values.by_ref().take(count).collect();
        Ok(tensors.iter().map(Vec::len).map(of_each).collect())
    }
}

impl SavedOptimizer for State {
    fn fields(&self, path: &ParameterPath) -> StateFields {
        let prefix = Self::prefix(path);
        let tensors = self.tensors(path, &prefix).into_iter();
        let tensors = tensors.map(|tensor| StateTensor {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            dtype: tensor.dtype.burn(),
        });
        let scalars = self.0.scalars().range(prefix.clone()..);
        let scalars = scalars.take_while(|(name, _)| name.starts_with(&prefix));
        let scalars = scalars.filter(|(name, _)| self.is_own(path, &prefix, name));
        let scalars = scalars.map(|(name, value)| (name.clone(), from_saved(*value)));
        let (tensors, scalars) = (tensors.collect(), scalars.collect());
        StateFields { tensors, scalars }
    }

    fn read(
        &self,
        paths: &[&ParameterPath],
        observer: &dyn Observer,
    ) -> Result<Vec<Vec<TensorData>>, Failed> {
        self.read_each(paths, |names| self.0.state(names, observer))
    }

    fn read_uncached(
        &self,
        paths: &[&ParameterPath],
        observer: &dyn Observer,
    ) -> Result<Vec<Vec<TensorData>>, Failed> {
        self.read_each(paths, |names| self.0.state_uncached(names, observer))
    }
}

/// The setting that must be the same in a run and its replay.
const PRECISION: &str = "precision";

/// Runs the programs of the step after a checkpoint again, one after the other in this process, with the values of the run:
/// see [`PipelineBuilder::replay`]. Step, parameters and loss scale come from the checkpoint. Seed, precision, number of
/// micro-batches and batch must be the same as in the run; plan and number of replicas may differ. A stage is read before its
/// programs run, so the model does not have to fit in memory.
///
/// # Errors
///
/// Returns an error if the checkpoint has another seed, precision or number of micro-batches, is of another model, or has
/// averages in place of the parameters. Otherwise see [`PipelineBuilder::replay`].
pub fn replay_step<M: Module + Sync + 'static, B: Batch>(
    checkpoint: Checkpoint,
    builder: PipelineBuilder<M, B>,
    batch: B,
) -> Result<StepReplay, CheckpointsError> {
    check_not_averaged(&checkpoint)?;
    let builder = match scale_of(&checkpoint) {
        Some((factor, steps)) => builder.resume_loss_scale(factor, steps),
        None => builder,
    };
    let source = checkpoint.source(LoadOptions::default())?;
    let replay = builder.source(source).replay(checkpoint.step(), batch)?;
    check_seed(&checkpoint, replay.seed())?;
    let saved = checkpoint.manifest().settings();
    let differs = |saved: &&String| **saved != replay.precision();
    if let Some(saved) = saved.get(PRECISION).filter(differs) {
        let (expected, found) = (saved.clone(), replay.precision().to_owned());
        return Err(CheckpointsError::Precision { expected, found });
    }
    warn_of_numerics(&checkpoint);
    let found = replay.most_micro_batches() as u64;
    match micro_batches_of(&checkpoint).filter(|expected| *expected != found) {
        Some(expected) => Err(CheckpointsError::MicroBatches { expected, found }),
        None => Ok(replay),
    }
}
