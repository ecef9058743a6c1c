//! Restores a checkpoint to the ranks of a pipeline.

use std::error::Error;
use std::path::PathBuf;

use burn::module::Module;
use burn::tensor::{DType, TensorData};
use serde_json::Value;
use tinderbox_checkpoint::{Checkpoint, CheckpointSource, LoadOptions, Role, TensorEntry};
use tinderbox_deferred::{Deferred, Observer, ParameterPath};
use tinderbox_pipeline::{
    Batch, Pipeline, PipelineError, SavedOptimizer, StateError, StateFields, StateTensor, StepRates,
};

use super::scalars::{from_saved, is_averaged, rates_of, scale_of};
use super::settings::{Expected, warn_of_numerics};
use crate::CheckpointsError;

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
#[derive(Clone, Debug, PartialEq, Eq)]
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

fn parameters_of<M: Module>(model: &Deferred<M>) -> Vec<(ParameterPath, Vec<u64>, DType)> {
    let parameters = model.parameters().distinct();
    parameters
        .map(|p| (p.path.clone(), p.shape.clone(), p.dtype))
        .collect()
}

/// A checkpoint that was checked, and can be restored.
pub(super) struct Prepared {
    source: CheckpointSource,
    state: State,
    scale: Option<(f64, u64)>,
    resumed: Resumed,
}

/// Restores one checkpoint in place, after every rank has checked what it will read.
pub(super) fn restore<M: Module + Sync + 'static, B: Batch>(
    pipeline: &mut Pipeline<M, B>,
    checkpoint: Checkpoint,
    expected: &Expected,
) -> Result<Resumed, CheckpointsError> {
    prepare(pipeline, checkpoint, expected)?.restore(pipeline)
}

/// Checks that a checkpoint fits a pipeline, without reading values.
pub(super) fn prepare<M: Module + Sync + 'static, B: Batch>(
    pipeline: &Pipeline<M, B>,
    checkpoint: Checkpoint,
    settings: &Expected,
) -> Result<Prepared, CheckpointsError> {
    let (expected, found) = (checkpoint.manifest().seed, pipeline.seed().value());
    if expected != found {
        return Err(CheckpointsError::Seed { expected, found });
    }
    if is_averaged(&checkpoint) && pipeline.has_optimizer() {
        let path = checkpoint.dir().to_owned();
        return Err(CheckpointsError::Averaged { path });
    }
    let source = checkpoint.source(LoadOptions::default())?;
    source.check_model(&parameters_of(pipeline.model()))?;
    // Without an optimizer, nothing is trained.
    if pipeline.has_optimizer() {
        settings.check(&checkpoint, pipeline.run_settings())?;
    }
    warn_of_numerics(&checkpoint);
    let scale = scale_of(&checkpoint);
    let resumed = Resumed {
        step: checkpoint.step(),
        data_position: checkpoint.manifest().data_position,
        metadata: checkpoint.manifest().metadata(),
        learning_rates: rates_of(&checkpoint),
        dir: checkpoint.dir().to_owned(),
        skipped: Vec::new(),
    };
    let state = State(checkpoint);
    // With a loss scale, all steps so far may have been skipped.
    let has_stepped = resumed.step > 0 && scale.is_none();
    if has_stepped && pipeline.keeps_optimizer_state() && state.is_empty() {
        return Err(CheckpointsError::NoOptimizerState { path: resumed.dir });
    }
    Ok(Prepared {
        source,
        state,
        scale,
        resumed,
    })
}

impl Prepared {
    /// Restores the values in place.
    pub(super) fn restore<M: Module + Sync + 'static, B: Batch>(
        self,
        pipeline: &mut Pipeline<M, B>,
    ) -> Result<Resumed, CheckpointsError> {
        let Self {
            source,
            state,
            scale,
            resumed,
        } = self;
        let restored = pipeline.restore(source, state);
        restored.map_err(|error| match error {
            PipelineError::State(StateError::Restore { rank, source }) => CheckpointsError::Fit {
                rank,
                path: resumed.dir.clone(),
                source: Box::new(source),
            },
            PipelineError::State(StateError::PartlyRestored { rank, source }) => {
                CheckpointsError::LoadRank {
                    rank,
                    path: resumed.dir.clone(),
                    source: Box::new(source),
                }
            }
            error => error.into(),
        })?;
        pipeline.resume_at(resumed.step);
        if let Some(rates) = &resumed.learning_rates {
            pipeline.resume_learning_rates(rates.clone());
        }
        if let Some((factor, steps)) = scale {
            pipeline.resume_loss_scale(factor, steps);
        }
        Ok(resumed)
    }
}

/// The optimizer's state in a checkpoint.
pub(super) struct State(Checkpoint);

impl State {
    pub(super) fn of(checkpoint: Checkpoint) -> Self {
        Self(checkpoint)
    }

    pub(super) fn is_empty(&self) -> bool {
        let scalars = self.0.scalars().range("optimizer.".to_owned()..).next();
        let is_of_optimizer = |(name, _): (&String, _)| name.starts_with("optimizer.");
        self.0.tensors(Role::State).next().is_none() && !scalars.is_some_and(is_of_optimizer)
    }

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
        let tensors = self.0.state_under(prefix);
        tensors
            .filter(|tensor| self.is_own(path, prefix, &tensor.name))
            .collect()
    }

    /// The names of the tensors of each parameter's state.
    fn names(&self, paths: &[&ParameterPath]) -> Vec<Vec<&String>> {
        let names = paths.iter().map(|path| {
            let tensors = self.tensors(path, &Self::prefix(path)).into_iter();
            tensors.map(|tensor| &tensor.name).collect()
        });
        names.collect()
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
        StateFields {
            tensors: tensors.collect(),
            scalars: scalars
                .map(|(name, value)| (name.clone(), from_saved(*value)))
                .collect(),
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
        let names = self.names(paths);
        let read = self.0.state_with(&names.concat(), observer)?;
        Ok(of_each(&names, read))
    }

    fn read_uncached(
        &self,
        paths: &[&ParameterPath],
        observer: &dyn Observer,
    ) -> Result<Vec<Vec<TensorData>>, Failed> {
        let names = self.names(paths);
        let read = self.0.state_uncached(&names.concat(), observer)?;
        Ok(of_each(&names, read))
    }
}

/// Divides the values that were read together.
fn of_each(names: &[Vec<&String>], read: Vec<TensorData>) -> Vec<Vec<TensorData>> {
    let mut read = read.into_iter();
    let of_each = names.iter();
    of_each
        .map(|names| read.by_ref().take(names.len()).collect())
        .collect()
}
