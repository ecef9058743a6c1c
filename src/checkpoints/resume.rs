//! Resumes a run from its newest undamaged checkpoint, and runs the programs of the step after a checkpoint again.

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
use crate::CheckpointsError;

impl Checkpoints {
    /// Restores the newest undamaged checkpoint, saved by any number of ranks. Newer damaged ones are skipped
    /// and set aside, so that their steps can be saved again; the result lists them, and each causes a
    /// `tracing` warning. Returns `None` if there is no checkpoint: the pipeline is then unchanged. A
    /// pipeline without an optimizer does not read optimizer state.
    ///
    /// Memory: in addition to the pipeline's, as much as the largest parameter for each rank, because each
    /// value replaces the old one as soon as it is read.
    ///
    /// In a [world](Self::in_world) of processes, the first chooses the checkpoint, and no process changes anything before
    /// all have found that it fits. If data turns out to be damaged then, no older checkpoint is tried: start again.
    ///
    /// # Errors
    ///
    /// Returns an error if the newest undamaged checkpoint is of another model, seed or version of
    /// the format, or was saved with other [settings](Pipeline::run_settings) than the pipeline's that may not
    /// [change](Self::allow_changes), or its store fails or denies access; the pipeline is then unchanged, and no older step is
    /// used. Returns [`CheckpointsError::Mixed`] if values could not be read after others were replaced, and
    /// no older checkpoint could be restored instead: the pipeline is then unusable.
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
            path: self.place.clone(),
            source: Box::new(source),
        };
        if LoadError::class_in(&failed) != Some(ErrorClass::Damaged) {
            return Err(mixed(failed));
        }
        tracing::warn!(
            error = with_causes(&failed),
            "a checkpoint is damaged: searching for an undamaged one"
        );
        // Reads all data of each.
        match self.run.latest_verified() {
            Ok(Some(latest)) => {
                let restored = self.restore_latest(pipeline, latest);
                restored.map(Some).map_err(mixed)
            }
            Ok(None) => Err(mixed(failed)),
            Err(error) => Err(mixed(error.into())),
        }
    }

    fn restore_latest<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        latest: Latest,
    ) -> Result<Resumed, CheckpointsError> {
        let source = prepare(pipeline, latest.checkpoint, &self.settings)?;
        let mut resumed = restore(pipeline, source)?;
        // Only now, because until an older checkpoint is restored there is no other.
        let skipped = latest.skipped.into_iter();
        resumed.skipped = skipped.map(|skipped| self.set_aside(&skipped)).collect();
        Ok(resumed)
    }

    pub(super) fn set_aside(&self, skipped: &Skipped) -> SkippedCheckpoint {
        let Skipped { step, dir, reason } = skipped;
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
            set_aside: moved,
        }
    }
}

/// The result of resuming a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Resumed {
    /// Number of completed training steps.
    pub step: u64,
    /// The position in the training data, in the caller's unit.
    pub data_position: u64,
    /// The metadata that [`Checkpoints::save_with`](crate::Checkpoints::save_with) saved; `null` without.
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
    /// Its step, which can be saved again.
    pub step: u64,
    /// The reason, on one line.
    pub reason: String,
    /// The current location of its files, where they are neither used as a checkpoint nor removed
    /// automatically. `None` if another process has removed them, or they could not be moved: then a
    /// `tracing` warning has the reason, and the step can't be saved.
    pub set_aside: Option<PathBuf>,
}

type Failed = Box<dyn Error + Send + Sync>;

/// Checks that a checkpoint fits a pipeline, without reading values; returns what is restored.
pub(super) fn prepare<M: Module + Sync + 'static, B: Batch>(
    pipeline: &Pipeline<M, B>,
    checkpoint: Checkpoint,
    settings: &Expected,
) -> Result<CheckpointSource, CheckpointsError> {
    check_seed(&checkpoint, pipeline.seed())?;
    if pipeline.has_optimizer() {
        check_not_averaged(&checkpoint)?;
    }
    let source = checkpoint.source(LoadOptions::default())?;
    let parameters = pipeline.model().parameters().distinct();
    let parameters = parameters.map(|p| (p.path.clone(), p.shape.clone(), p.dtype));
    source.check_model(&parameters.collect::<Vec<_>>())?;
    // Without an optimizer, nothing is trained.
    if pipeline.has_optimizer() {
        settings.check(&checkpoint, pipeline.run_settings())?;
    }
    warn_of_numerics(&checkpoint);
    check_state(&checkpoint, pipeline.keeps_optimizer_state())?;
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

/// Refuses a checkpoint without a state that the optimizer needs to continue.
pub(super) fn check_state(
    checkpoint: &Checkpoint,
    is_needed: bool,
) -> Result<(), CheckpointsError> {
    let mut scalars = checkpoint.scalars().keys();
    let has_state = checkpoint.tensors(Role::State).next().is_some()
        || scalars.any(|name| name.starts_with("optimizer."));
    // With a loss scale, all steps so far may have been skipped.
    let has_stepped = checkpoint.step() > 0 && scale_of(checkpoint).is_none();
    if is_needed && has_stepped && !has_state {
        let path = checkpoint.dir().to_owned();
        return Err(CheckpointsError::NoOptimizerState { path });
    }
    Ok(())
}

/// Restores the values of a prepared checkpoint in place.
pub(super) fn restore<M: Module + Sync + 'static, B: Batch>(
    pipeline: &mut Pipeline<M, B>,
    source: CheckpointSource,
) -> Result<Resumed, CheckpointsError> {
    let checkpoint = source.checkpoint().clone();
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
    let learning_rates = rates_of(&checkpoint);
    if let Some(rates) = &learning_rates {
        pipeline.resume_learning_rates(rates.clone());
    }
    if let Some((factor, steps)) = scale_of(&checkpoint) {
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

    /// Whether a name of a parameter's state is its own: the path of another parameter may begin with this
    /// one's, as the paths of LoRA adapters begin with the path of the weight.
    fn is_own(&self, path: &ParameterPath, prefix: &str, name: &str) -> bool {
        let fields = name.strip_prefix(prefix).unwrap_or_default();
        let mut dots = fields.match_indices('.');
        !dots.any(|(dot, _)| {
            let longer = format!("{path}.{}", &fields[..dot]);
            self.0.tensor(Role::Model, &longer).is_some()
        })
    }

    /// The tensors of a parameter's state.
    fn tensors<'a>(&'a self, path: &ParameterPath, prefix: &str) -> Vec<&'a TensorEntry> {
        let is_own = |tensor: &&TensorEntry| self.is_own(path, prefix, &tensor.name);
        self.0.state_under(prefix).filter(is_own).collect()
    }

    /// Reads the tensors of each parameter's state, all at a time.
    fn read_each(
        &self,
        paths: &[&ParameterPath],
        read: impl FnOnce(&[&String]) -> Result<Vec<TensorData>, LoadError>,
    ) -> Result<Vec<Vec<TensorData>>, Failed> {
        let tensors = |path: &&ParameterPath| self.tensors(path, &Self::prefix(path));
        let tensors: Vec<Vec<&TensorEntry>> = paths.iter().map(tensors).collect();
        let names = tensors.iter().flatten().map(|tensor| &tensor.name);
        let mut values = read(&names.collect::<Vec<_>>())?.into_iter();
        let of_each = tensors.iter().map(Vec::len);
        Ok(of_each
            .map(|count| values.by_ref().take(count).collect())
            .collect())
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
        StateFields {
            tensors: tensors.collect(),
            scalars: scalars.collect(),
        }
    }

    fn read(
        &self,
        path: &ParameterPath,
        observer: &dyn Observer,
    ) -> Result<Vec<TensorData>, Failed> {
        Ok(self.read_all(&[path], observer)?.concat())
    }

    fn read_all(
        &self,
        paths: &[&ParameterPath],
        observer: &dyn Observer,
    ) -> Result<Vec<Vec<TensorData>>, Failed> {
        self.read_each(paths, |names| self.0.state_with(names, observer))
    }

    fn read_uncached(
        &self,
        paths: &[&ParameterPath],
        observer: &dyn Observer,
    ) -> Result<Vec<Vec<TensorData>>, Failed> {
        self.read_each(paths, |names| self.0.state_uncached(names, observer))
    }
}

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
