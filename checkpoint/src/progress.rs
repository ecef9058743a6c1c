//! Progress of long work.

use tinderbox_deferred::Observer;

/// Is notified how far a save, a load or a check is: a progress bar, say. Calls come from any thread.
pub trait Progress: Send + Sync {
    /// So many bytes are about to be written or read; called once by each rank that takes part.
    fn begin(&self, bytes: u64) {
        let _ = bytes;
    }

    /// So many more bytes are done.
    fn done(&self, bytes: u64) {
        let _ = bytes;
    }
}

/// Ignores all events.
impl Progress for () {}

/// Reports what is read to the observer of a source as well.
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
