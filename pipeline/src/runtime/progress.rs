//! How far a rank is with a request of the driver.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tinderbox_deferred::{Observer, ParameterPath};

/// Counts what a rank makes, reads or runs, for the driver, which waits as long as something is counted.
#[derive(Debug, Default)]
pub(super) struct RankProgress {
    /// Everything that was reported since the rank started.
    reports: AtomicU64,
    /// Parameters of the request that were begun.
    begun: AtomicU64,
    /// Those of them that are complete.
    made: AtomicU64,
    /// Their bytes.
    made_bytes: AtomicU64,
    /// Bytes that were reported while values were incomplete.
    advanced_bytes: AtomicU64,
}

/// What was counted for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Parameters that are there.
    pub(super) made: u64,
    /// Parameters that were begun.
    pub(super) begun: u64,
    /// Bytes that were made or read.
    pub(super) bytes: u64,
}

impl RankProgress {
    /// Everything that was reported since the rank started: it differs when something was.
    pub(super) fn reports(&self) -> u64 {
        self.reports.load(Relaxed)
    }

    /// Counts for another request.
    pub(super) fn restart(&self) {
        let counts = [
            &self.begun,
            &self.made,
            &self.made_bytes,
            &self.advanced_bytes,
        ];
        counts.into_iter().for_each(|count| count.store(0, Relaxed));
    }

    pub(super) fn counted(&self) -> Counted {
        // A source reports bytes while it reads or only when a value is there, or both.
        let bytes = self.made_bytes.load(Relaxed);
        Counted {
            made: self.made.load(Relaxed),
            begun: self.begun.load(Relaxed),
            bytes: bytes.max(self.advanced_bytes.load(Relaxed)),
        }
    }

    /// Notes that something is done which is not counted.
    pub(super) fn report(&self) {
        self.reports.fetch_add(1, Relaxed);
    }
}

impl Observer for RankProgress {
    fn begin(&self, parameters: usize, _: u64) {
        self.begun.fetch_add(parameters as u64, Relaxed);
        self.report();
    }

    fn advanced(&self, bytes: u64) {
        self.advanced_bytes.fetch_add(bytes, Relaxed);
        self.report();
    }

    fn made(&self, _: &ParameterPath, bytes: u64) {
        self.made.fetch_add(1, Relaxed);
        self.made_bytes.fetch_add(bytes, Relaxed);
        self.report();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_reported_twice_count_once() {
        let progress = RankProgress::default();
        let path = ParameterPath::new("weight");
        progress.begin(2, 12);
        progress.advanced(8);
        progress.made(&path, 8);
        progress.advanced(3);
        let expected = Counted {
            made: 1,
            begun: 2,
            bytes: 11,
        };
        assert_eq!(progress.counted(), expected);
        assert_eq!(progress.reports(), 4);
        progress.restart();
        assert_eq!(progress.counted(), Counted::default());
        assert_eq!(progress.reports(), 4, "a look may be between");
        progress.made(&path, 4);
        assert_eq!(progress.counted().bytes, 4);
    }
}
