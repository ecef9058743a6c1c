//! Progress of long work.

use crate::ParameterPath;

/// Hears how far a materialization or a load is: a progress bar, say.
///
/// Calls come from any thread, and in any order of the parameters.
pub trait Observer: Send + Sync {
    /// Values are about to be made or read: how many parameters, and bytes of all.
    fn begin(&self, parameters: usize, bytes: u64) {
        let _ = (parameters, bytes);
    }

    /// One value is there.
    fn made(&self, path: &ParameterPath, bytes: u64) {
        let _ = (path, bytes);
    }

    /// Everything is there. Not called after an error.
    fn end(&self) {}
}

/// Hears nothing.
impl Observer for () {}
