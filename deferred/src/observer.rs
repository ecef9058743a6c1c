//! Progress of long operations.

use crate::ParameterPath;

/// Receives the progress of a materialization, a load, a save or a check, for example for a progress bar.
///
/// Methods are called from any thread, and in any order of the parameters. A save begins and ends once per rank.
pub trait Observer: Send + Sync {
    /// Called before values are computed, read or written, with the number of tensors and the bytes of all.
    fn begin(&self, _tensors: usize, _bytes: u64) {}

    /// Called after more bytes of incomplete values were computed, read or written; 0 for other work that takes time.
    /// A source that computes each value in one step only reports [`completed`](Self::completed).
    fn advanced(&self, _bytes: u64) {}

    /// Called after one value is complete.
    fn completed(&self, _path: &ParameterPath, _bytes: u64) {}

    /// Called after all values are complete. Not called after an error.
    fn end(&self) {}
}

/// Ignores all events.
impl Observer for () {}
