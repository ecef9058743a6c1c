//! Errors of the facade.

use std::fmt;
use std::path::PathBuf;

use tinderbox_checkpoint::{LoadError, Run, SaveError, tools::ToolError};
use tinderbox_deferred::{MaterializeError, SourceError};
use tinderbox_fake::FakeError;
use tinderbox_pipeline::schedule::RankIndex;
use tinderbox_pipeline::{BatchError, PipelineError, PlanError, RestoreError, TraceError};

/// The reason why a run could not be saved or resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointsError {
    /// The checkpoint could not be opened, started or published.
    #[error("the checkpoint of step {step} could not be saved")]
    Save {
        /// The step.
        step: u64,
        /// The cause.
        source: Box<SaveError>,
    },
    /// The plan can't be serialized.
    #[error("the plan can't be saved with step {step}")]
    Plan {
        /// The step.
        step: u64,
        /// The cause.
        source: serde_json::Error,
    },
    /// The checkpoint was saved, but an earlier one could not be removed.
    #[error("step {step} was saved, but an earlier checkpoint could not be removed")]
    Prune {
        /// The step.
        step: u64,
        /// The cause.
        source: Box<SaveError>,
    },
    /// The processes of a world could not save or resume together.
    #[error(transparent)]
    World(#[from] tinderbox_world::WorldError),
    /// Processes of a world do not save in the background.
    #[error("processes of a world wait until a checkpoint is published: leave out `in_background`")]
    BackgroundInWorld,
    /// Processes of a world save to different directories.
    #[error(
        "{path} is not where rank 0 saves, though it may have the same name: all processes of a world save to one place"
    )]
    NotShared {
        /// The directory of this process.
        path: PathBuf,
    },
    /// Remains of an earlier run could not be removed.
    #[error("the run directory {path} could not be opened")]
    Open {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: Box<SaveError>,
    },
    /// The parameters could not be exported.
    #[error("the parameters could not be exported to {path}")]
    Export {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: Box<ToolError>,
    },
    /// The checkpoint can't be used.
    #[error("the checkpoint could not be loaded")]
    Load(#[from] LoadError),
    /// The checkpoint does not match what a rank holds.
    #[error("{path} does not fit rank {rank}, nothing was changed")]
    Fit {
        /// The rank.
        rank: RankIndex,
        /// The checkpoint.
        path: PathBuf,
        /// The mismatch.
        source: Box<RestoreError>,
    },
    /// A rank could not read its part; other ranks may have succeeded.
    #[error("rank {rank} could not read its part of {path}")]
    LoadRank {
        /// The rank.
        rank: RankIndex,
        /// The checkpoint.
        path: PathBuf,
        /// The cause.
        source: Box<RestoreError>,
    },
    /// A checkpoint could not be read completely, and no other could be restored instead.
    #[error(
        "no checkpoint in {path} could be restored, and the pipeline holds a mixture of old and restored values: it \
         is unusable"
    )]
    Mixed {
        /// The directory of the run.
        path: PathBuf,
        /// The reason why the last checkpoint could not be restored.
        source: Box<CheckpointsError>,
    },
    /// A module could not be created from the checkpoint.
    #[error("the checkpoint could not be loaded into a module")]
    Materialize {
        /// The cause.
        source: MaterializeError,
    },
    /// The seed of the pipeline differs from the seed of the checkpoint.
    #[error(
        "the checkpoint was saved with seed {expected}, the pipeline was started with {found}: start \
         it with `.seed({expected})`, otherwise dropout differs"
    )]
    Seed {
        /// The checkpoint's seed.
        expected: u64,
        /// The pipeline's seed.
        found: u64,
    },
    /// Settings that decide the losses differ from those that the checkpoint was saved with.
    #[error(
        "{path} was saved with other settings, and the losses would differ from a training without an interruption: {}; \
         continue with the saved ones, or name those that may differ in `allow_changes`",
        differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    OtherSettings {
        /// The checkpoint.
        path: PathBuf,
        /// Every difference, by name.
        differences: Vec<SettingDifference>,
    },
    /// A setting that may differ has a name that neither the run nor the checkpoint has.
    #[error(
        "`{name}` is no setting of a training, so it can't be allowed to change: the settings are {}",
        known.join(", ")
    )]
    UnknownSetting {
        /// The name.
        name: String,
        /// The names of the settings.
        known: Vec<String>,
    },
    /// The pipeline's optimizer has state, but the checkpoint has none.
    #[error(
        "checkpoint {path} has no optimizer state, but the pipeline's optimizer requires it: resume with the optimizer that \
         saved it, or start a new run with its parameters as the pipeline's source"
    )]
    NoOptimizerState {
        /// The checkpoint.
        path: PathBuf,
    },
    /// The newest checkpoint of a [`WorkingDir`](crate::WorkingDir) has parameters that are not trained now.
    #[error(
        "{path} has parameters that are not trained now, and later steps would not have them, such as `{}` ({} in all): train them \
         too, or open another directory with this checkpoint as the source",
        names.first().map_or("", |name| name),
        names.len()
    )]
    NotTrained {
        /// The checkpoint.
        path: PathBuf,
        /// Their names.
        names: Vec<String>,
    },
    /// The checkpoint was saved with averages in place of the parameters.
    #[error(
        "{path} has the averages of the parameters, without a state of the optimizer: training can't continue with it; resume \
         from another checkpoint, or load it into a pipeline without an optimizer, or as initial values"
    )]
    Averaged {
        /// The checkpoint.
        path: PathBuf,
    },
    /// A step is replayed with another number of micro-batches.
    #[error(
        "the run splits a batch into {expected} micro-batches, and the replay into {found}, which computes other values: set \
         `micro_batches({expected})`"
    )]
    MicroBatches {
        /// The number of the run.
        expected: u64,
        /// The number of the replay.
        found: u64,
    },
    /// A step is replayed in another precision.
    #[error(
        "the precision of the run is `{expected}`, and the replay has `{found}`, which gives other values: trace the model with the \
         precision of the run"
    )]
    Precision {
        /// The precision of the run.
        expected: String,
        /// The precision of the replay.
        found: String,
    },
    /// The pipeline failed.
    #[error("the pipeline failed")]
    Pipeline(#[from] PipelineError),
}

impl CheckpointsError {
    /// Returns how an error of the save of a step is reported.
    pub(crate) fn save(step: u64) -> impl Fn(SaveError) -> Self + Copy {
        move |source| Self::Save {
            step,
            source: Box::new(source),
        }
    }

    /// Returns how an error of the start of a run is reported.
    pub(crate) fn open(run: &Run) -> impl FnOnce(SaveError) -> Self {
        let path = run.place();
        move |source| Self::Open {
            path,
            source: Box::new(source),
        }
    }
}

/// A setting of a training that differs from the one that a checkpoint was saved with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingDifference {
    /// The name, one of [`Pipeline::run_settings`](crate::Pipeline::run_settings) or `learning_rates`.
    pub name: String,
    /// The setting of the checkpoint.
    pub saved: String,
    /// The setting of the run that continues with it.
    pub given: String,
}

impl fmt::Display for SettingDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (saved, given) = differing(&self.saved, &self.given);
        write!(f, "`{}` was `{saved}` and is now `{given}`", self.name)
    }
}

/// Returns what differs in two settings: of optimizers, the groups, each with its parameters, and of their configurations, the
/// fields.
fn differing(saved: &str, given: &str) -> (String, String) {
    by_parts(saved, given, "; ", |saved, given| {
        let (of_saved, of_given) = (split_parameters(saved), split_parameters(given));
        if of_saved.1 != of_given.1 {
            return pair(saved, given);
        }
        let (saved, given) = by_parts(of_saved.0, of_given.0, ", ", pair);
        (saved + of_saved.1, given + of_given.1)
    })
}

/// Splits a group of an optimizer into its configuration and its parameters, if it has some.
fn split_parameters(group: &str) -> (&str, &str) {
    group.split_at(group.rfind(" of ").unwrap_or(group.len()))
}

fn pair(saved: &str, given: &str) -> (String, String) {
    (saved.to_owned(), given.to_owned())
}

/// Returns the parts that differ, if there are equally many; otherwise all.
fn by_parts(
    saved: &str,
    given: &str,
    separator: &str,
    shown: impl Fn(&str, &str) -> (String, String),
) -> (String, String) {
    let (first, second) = (saved.split(separator), given.split(separator));
    if first.clone().count() != second.clone().count() {
        return pair(saved, given);
    }
    let differing = first.zip(second).filter(|(a, b)| a != b);
    let (first, second): (Vec<_>, Vec<_>) = differing.map(|(a, b)| shown(a, b)).unzip();
    (first.join(separator), second.join(separator))
}

/// The reason why the reads of a load can't be determined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DryRunError {
    /// The plan is for another model.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The load would fail.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// The reason why a model could not be compared with plain Burn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyModelError {
    /// The batch can't be split.
    #[error("the batch can't be used")]
    Batch(#[from] BatchError),
    /// The batch has no samples.
    #[error("the batch has no samples: use at least one sample per micro-batch")]
    EmptyBatch,
    /// The model could not be traced for the batch.
    #[error("the model could not be traced for this batch")]
    Trace(#[from] TraceError),
    /// The module of plain Burn could not be created.
    #[error("the module of plain Burn could not be created")]
    Materialize(#[from] MaterializeError),
    /// The forward returns no loss.
    #[error("the forward returned no loss: return `Outputs::loss(loss)`")]
    NoLoss,
    /// A value could not be read.
    #[error("a value could not be read")]
    Value(#[from] FakeError),
    /// The pipeline could not be started, or failed.
    #[error("the step in the pipeline failed")]
    Pipeline(#[from] PipelineError),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(saved: &str, given: &str) -> String {
        let name = "optimizer".to_owned();
        let (saved, given) = (saved.to_owned(), given.to_owned());
        SettingDifference { name, saved, given }.to_string()
    }

    #[test]
    fn of_two_optimizers_what_differs_is_shown() {
        let saved = "A {x: 1, y: 2}; B {x: 1, y: 2} of a, b; B {x: 1, y: 2} of c";
        assert_eq!(
            shown(saved, &saved.replace("2} of c", "3} of c")),
            "`optimizer` was `y: 2} of c` and is now `y: 3} of c`"
        );
        assert_eq!(
            shown(saved, &saved.replace("of c", "of d")),
            "`optimizer` was `B {x: 1, y: 2} of c` and is now `B {x: 1, y: 2} of d`"
        );
        assert_eq!(
            shown("A {x: 1, y: 2}", "A {x: 2, y: 2}"),
            "`optimizer` was `A {x: 1` and is now `A {x: 2`"
        );
        let other = "A {x: 1, y: 2}; B {x: 1, y: 2} of a, b";
        assert_eq!(
            shown(saved, other),
            format!("`optimizer` was `{saved}` and is now `{other}`")
        );
    }
}
