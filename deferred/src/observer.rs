//! Progress of long operations.

use crate::ParameterPath;

/// Receives the progress of a materialization or a load, for example for a progress bar.
///
/// Methods are called from any thread, and in any order of the parameters.
pub trait Observer: Send + Sync {
    /// Called before values are computed or read, with the number of parameters and the bytes of all.
    fn begin(&self, parameters: usize, bytes: u64) {
        let _ = (parameters, bytes);
    }

    /// Called after more bytes of incomplete values were computed or read; 0 for other work that takes time.
    /// A source that computes each value in one step only reports [`completed`](Self::completed).
    fn advanced(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Called after one value is complete.
    fn completed(&self, path: &ParameterPath, bytes: u64) {
        let _ = (path, bytes);
    }

    /// Called after all values are complete. Not called after an error.
    fn end(&self) {}
}

/// Ignores all events.
impl Observer for () {}
