//! What happened when processes were lost.

use std::fmt;
use std::time::Duration;

use tinderbox_deferred::human_bytes;
use tinderbox_world::Failure;

use crate::error::numbered;
use crate::schedule::RankIndex;

/// What happened when processes were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The processes that were lost, as they were numbered when the state was kept that this goes back to.
    pub lost: Vec<RankIndex>,
    /// The first failure.
    pub failure: Failure,
    /// The number of training steps that are done.
    pub step: u64,
    /// How many completed steps were repeated.
    pub repeated: u64,
    /// The rank of this process now.
    pub rank: RankIndex,
    /// The number of ranks now.
    pub ranks: usize,
    /// The number of processes that wait until another one is lost.
    pub spares: usize,
    /// The bytes that this process was sent.
    pub received_bytes: u64,
    /// From when this process noticed the loss until those that are left had agreed on who they are.
    pub agreed: Duration,
    /// From then until the ranks had been started again with the state that is kept.
    pub restored: Duration,
    /// From when this process noticed the loss until it went on: also for the repeated steps.
    pub took: Duration,
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lost[..] {
            [one] if *one == self.failure.rank => write!(f, "{}", self.failure),
            lost => write!(f, "{} are lost ({})", numbered(lost), self.failure),
        }?;
        write!(
            f,
            ": {} ranks and {} spares continue after step {}, with {} steps repeated and {} received by rank \
             {}, in {:.3} s: {:.3} s to agree, {:.3} s to restore the state",
            self.ranks,
            self.spares,
            self.step,
            self.repeated,
            human_bytes(self.received_bytes),
            self.rank,
            self.took.as_secs_f64(),
            self.agreed.as_secs_f64(),
            self.restored.as_secs_f64(),
        )
    }
}
