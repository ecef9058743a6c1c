//! Errors of saves and resumes.

use std::fmt;
use std::path::PathBuf;

use tinderbox_checkpoint::{LoadError, Run, SaveError, tools::ToolError};
use tinderbox_deferred::SourceError;
use tinderbox_pipeline::schedule::RankIndex;
use tinderbox_pipeline::{PipelineError, PlanError, RestoreError};

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
    /// The interval of periodic saves is 0.
    #[error(
        "`every(0)` saves after no step: set at least 1, or leave it out and call `save` when a step is to be saved"
    )]
    Interval,
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
    /// Files that an interrupted save has left could not be removed.
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
    /// Other processes hold some of the parameters.
    #[error(
        "this process has the parameters of {ranks} of {all_ranks} ranks: save a checkpoint, and export it with \
         `tinderbox ckpt export`"
    )]
    InProcesses {
        /// Number of ranks in this process.
        ranks: usize,
        /// Number of all ranks.
        all_ranks: usize,
    },
    /// The checkpoint can't be used.
    #[error("the checkpoint could not be loaded")]
    Load(#[from] LoadError),
    /// The checkpoint does not match the values of a rank.
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
    /// Settings that decide the losses differ from the settings of the checkpoint.
    #[error(
        "{path} was saved with other settings, and the losses would differ from a training without an interruption: {}; \
         continue with the saved settings, or name the settings that may differ in `allow_changes`",
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
    /// The pipeline's optimizer has state, and the checkpoint has no state.
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
        "{path} has parameters that are not trained now, and later steps would not have them, such as `{}` ({} in all): train \
         them too, or open another directory with this checkpoint as the source",
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
        "the run splits a batch into {expected} micro-batches, and the replay into {found}, which computes other values: trace \
         the model with {expected} micro-batches"
    )]
    MicroBatches {
        /// The number of the run.
        expected: u64,
        /// The number of the replay.
        found: u64,
    },
    /// A step is replayed in another precision.
    #[error(
        "the precision of the run is `{expected}`, and the replay has `{found}`, which gives other values: trace the model \
         with the precision of the run"
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
    /// Returns a conversion of errors that occur when a step is saved.
    pub(crate) fn save(step: u64) -> impl Fn(SaveError) -> Self + Copy {
        move |source| Self::Save {
            step,
            source: Box::new(source),
        }
    }

    /// Returns a conversion of errors that occur when a run is opened.
    pub(crate) fn open(run: &Run) -> impl FnOnce(SaveError) -> Self {
        let path = run.place();
        move |source| Self::Open {
            path,
            source: Box::new(source),
        }
    }
}

/// A setting of a training that differs from the setting of a checkpoint.
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

/// Returns the parts that differ in two settings. For optimizers, these are the groups, each with its parameters; in a group
/// with the same parameters, the fields of its configuration.
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

/// Splits a group of an optimizer into its configuration and its parameters, if it names any.
fn split_parameters(group: &str) -> (&str, &str) {
    group.split_at(group.rfind(" of ").unwrap_or(group.len()))
}

fn pair(saved: &str, given: &str) -> (String, String) {
    (saved.to_owned(), given.to_owned())
}

/// Returns the parts that differ, or everything if the numbers of parts differ.
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

/// The reason why a load can't be predicted.
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
