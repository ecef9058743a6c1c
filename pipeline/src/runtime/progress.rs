//! The progress of a rank with a request of the driver.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tinderbox_deferred::{Observer, ParameterPath};
use tinderbox_world::Channel;

use crate::schedule::{Action, RankIndex};

/// Counts the values that a rank computes or reads and the actions that it runs, for the driver, which
/// waits as long as the counts grow.
#[derive(Debug, Default)]
pub(crate) struct RankProgress {
    /// The number of reports since the rank started.
    reports: AtomicU64,
    /// The counts of the request, with the bytes of the complete parameters, and the bytes that were reported while values
    /// were incomplete.
    counts: Mutex<(Counted, u64)>,
    /// The round and the action that runs.
    doing: Mutex<Option<(u64, Action)>>,
}

/// The counts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// The number of complete parameters.
    pub(crate) made: u64,
    /// The number of parameters that were started.
    pub(crate) begun: u64,
    /// The bytes that were computed or read.
    pub(crate) bytes: u64,
}

impl RankProgress {
    /// Returns the number of reports since the rank started, which changes with every report.
    pub(crate) fn reports(&self) -> u64 {
        self.reports.load(Relaxed)
    }

    /// Resets the counts for another request.
    pub(crate) fn reset_counts(&self) {
        *self.counts.lock() = Default::default();
    }

    pub(crate) fn counted(&self) -> Counted {
        let (counted, advanced) = *self.counts.lock();
        // A source reports bytes during a read, at its end, or both.
        let bytes = counted.bytes.max(advanced);
        Counted { bytes, ..counted }
    }

    /// Reports that an action begins.
    pub(crate) fn begin_action(&self, round: u64, action: Action) {
        *self.doing.lock() = Some((round, action));
        self.report();
    }

    /// Returns a text of the action that was begun last.
    pub(crate) fn doing(&self) -> Option<String> {
        let doing = *self.doing.lock();
        doing.map(|(round, action)| format!("`{action}` of round {round}"))
    }

    /// Reports progress that has no other count.
    pub(crate) fn report(&self) {
        self.reports.fetch_add(1, Relaxed);
    }
}

/// The progress of all ranks, as far as this process knows it.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The first rank of this process, and the progress of its ranks.
    pub(crate) own: (RankIndex, Vec<Arc<RankProgress>>),
    /// The channel that receives the reports of other processes.
    pub(crate) others: Option<Weak<Channel>>,
}

impl Watch {
    /// Returns the number of reports of the ranks of this process, which changes with every report.
    pub(crate) fn reports(&self) -> u64 {
        let (_, progress) = &self.own;
        progress.iter().map(|rank| rank.reports()).sum()
    }

    /// Returns the counts of the request of a rank of this process.
    pub(crate) fn counted(&self, rank: RankIndex) -> Counted {
        let (first, progress) = &self.own;
        progress[rank.index() - first.index()].counted()
    }

    /// Returns the last actions of all ranks except one.
    pub(crate) fn all_except(&self, rank: RankIndex) -> Vec<(RankIndex, String)> {
        let (first, progress) = &self.own;
        let here = progress.iter().enumerate().map(|(at, progress)| {
            let rank = RankIndex::new(first.index() + at);
            (rank, progress.doing())
        });
        let channel = self.others.as_ref().and_then(Weak::upgrade);
        let there = channel.iter();
        let there = there.flat_map(|one| one.others().map(|rank| (rank, one.doing(rank))));
        let all = here.chain(there).filter(|(other, _)| *other != rank);
        all.filter_map(|(rank, doing)| Some((rank, doing?)))
            .collect()
    }
}

impl Observer for RankProgress {
    fn begin(&self, parameters: usize, _: u64) {
        self.counts.lock().0.begun += parameters as u64;
        self.report();
    }

    fn advanced(&self, bytes: u64) {
        self.counts.lock().1 += bytes;
        self.report();
    }

    fn completed(&self, _: &ParameterPath, bytes: u64) {
        let (counted, _) = &mut *self.counts.lock();
        (counted.made, counted.bytes) = (counted.made + 1, counted.bytes + bytes);
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
        progress.completed(&path, 8);
        progress.advanced(3);
        let expected = Counted {
            made: 1,
            begun: 2,
            bytes: 11,
        };
        assert_eq!(progress.counted(), expected);
        assert_eq!(progress.reports(), 4);
        progress.reset_counts();
        assert_eq!(progress.counted(), Counted::default());
        assert_eq!(progress.reports(), 4, "the driver may check in between");
        progress.completed(&path, 4);
        assert_eq!(progress.counted().bytes, 4);
    }
}
