//! Progress of long operations.

use tinderbox_deferred::Observer;

/// An observer of the progress of a save, a load or a check, for example a progress bar. Its methods are
/// called from any thread.
pub trait Progress: Send + Sync {
    /// Announces bytes that will be written or read; called once by each participating rank.
    fn begin(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Reports bytes that have been written or read.
    fn done(&self, bytes: u64) {
        let _ = bytes;
    }
}

/// Ignores all events.
impl Progress for () {}

/// Forwards the bytes that are read to the observer of a source as well.
pub(crate) struct Observing<'a>(pub(crate) &'a dyn Progress, pub(crate) &'a dyn Observer);

impl Progress for Observing<'_> {
    fn begin(&self, bytes: u64) {
        self.0.begin(bytes);
    }

    fn done(&self, bytes: u64) {
        self.0.done(bytes);
        self.1.advanced(bytes);
    }
}
