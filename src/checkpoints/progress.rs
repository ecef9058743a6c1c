//! The state of a run besides its pipeline.

use serde_json::Value;

/// The progress of a run, which a checkpoint has besides the pipeline: the position in the training data, in a unit of the
/// caller's choice such as samples, and other state that the run needs to continue.
///
/// A number is a position without other state. A closure that returns a `RunProgress` is called only if the step is saved.
///
/// ```
/// use serde_json::json;
/// use tinderbox::checkpoint::RunProgress;
///
/// let progress = RunProgress::at(3200).with(json!({ "epoch": 3 }));
/// assert_ne!(progress, RunProgress::from(3200));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct RunProgress {
    pub(super) data_position: u64,
    pub(super) metadata: Value,
}

impl RunProgress {
    /// Creates the progress of a run that has used its data up to this position.
    pub fn at(data_position: u64) -> Self {
        Self {
            data_position,
            metadata: Value::Null,
        }
    }

    /// Adds other state, such as an epoch or the state of a random generator on the host: at most 1 MiB of JSON.
    /// [`Resumed::metadata`](super::Resumed::metadata) returns it.
    pub fn with(self, metadata: Value) -> Self {
        Self { metadata, ..self }
    }
}

impl From<u64> for RunProgress {
    fn from(data_position: u64) -> Self {
        Self::at(data_position)
    }
}

impl<F: FnOnce() -> RunProgress> From<F> for RunProgress {
    fn from(progress: F) -> Self {
        progress()
    }
}
