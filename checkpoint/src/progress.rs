//! Progress of long work.

/// Hears how far a save, a load or a check is: a progress bar, say. Calls come from any thread.
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

/// Hears nothing.
impl Progress for () {}
