//! Channels: frames of one part of a program.

use std::sync::Arc;

use bytes::Bytes;
use tinderbox_ids::RankIndex;

use crate::core::{Core, Member};
use crate::engine::{Handler, Priority};
use crate::members::{Roster, others};
use crate::message::Kind;
use crate::peers::Failure;

/// A channel for frames between all ranks, for one part of a program. Dropping it closes it. After its world has
/// [regrouped](crate::World::regroup), it does nothing.
#[derive(derive_more::Debug)]
pub struct Channel {
    rank: RankIndex,
    #[debug("{} processes", roster.size())]
    roster: Arc<Roster>,
    /// `None` in a world of one.
    #[debug("{:?}", open.as_ref().map(|(_, number)| number))]
    open: Option<(Arc<Member>, u32)>,
}

impl Channel {
    pub(crate) fn open(member: Option<Arc<Member>>, handler: Arc<dyn Handler>) -> Self {
        let (rank, roster, open) = match member {
            None => (RankIndex::new(0), Arc::new(Roster::first(1)), None),
            Some(member) => {
                let (rank, roster) = member.core.place();
                let number = member.core.open(handler);
                (rank, roster, Some((member, number)))
            }
        };
        Self { rank, roster, open }
    }

    /// Returns the rank of this process.
    pub const fn rank(&self) -> RankIndex {
        self.rank
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.roster.size()
    }

    /// Returns the ranks of all other processes.
    pub fn others(&self) -> impl Iterator<Item = RankIndex> + use<> {
        others(self.rank, self.size())
    }

    /// Queues a frame for another rank, without waiting. The pieces are not copied, and live until they have been sent.
    pub fn send(&self, to: RankIndex, header: &[u8], pieces: Vec<Bytes>) {
        self.queue(to, header, pieces, Priority::Normal);
    }

    /// Queues a frame that is sent when there is nothing else to send to this rank. Frames of this kind stay in order among
    /// themselves; other frames may overtake them.
    pub fn send_when_idle(&self, to: RankIndex, header: &[u8], pieces: Vec<Bytes>) {
        self.queue(to, header, pieces, Priority::Idle);
    }

    /// Queues a frame of this channel for the process of a rank.
    fn queue(&self, to: RankIndex, header: &[u8], pieces: Vec<Bytes>, priority: Priority) {
        if let Some((member, number)) = &self.open
            && let Some(to) = self.roster.members.get(to.index())
        {
            let frame = Kind::Channel(*number).frame(self.roster.generation, header, pieces);
            member.core.queue(*to, frame, priority);
        }
    }

    /// Reports to all ranks that this one failed. Only the first failure of a world counts.
    pub fn fail(&self, reason: &str) {
        if let Some(core) = self.core() {
            core.fail(Some(self.roster.generation), reason.to_owned());
        }
    }

    /// Returns the first failure of a rank, if there is one.
    pub fn failure(&self) -> Option<Failure> {
        self.core()?.failure()
    }

    /// Sets the report of this rank, such as its current action. Heartbeats send the report, and the errors of other ranks
    /// name it. The thread of the heartbeats calls `status`.
    pub fn report(&self, status: impl Fn() -> Option<String> + Send + Sync + 'static) {
        if let Some(core) = self.core() {
            core.set_status(Some(Arc::new(status)));
        }
    }

    /// Returns the last [report](Self::report) of a rank.
    pub fn doing(&self, rank: RankIndex) -> Option<String> {
        self.core()?.doing(rank)
    }

    /// Returns the core of the world; `None` after the world has regrouped.
    fn core(&self) -> Option<&Core> {
        let core = &*self.open.as_ref()?.0.core;
        (core.roster().generation == self.roster.generation).then_some(core)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let (Some(core), Some((_, number))) = (self.core(), &self.open) {
            if std::thread::panicking() {
                self.fail("its program panicked");
            }
            core.set_status(None);
            core.close(*number);
        }
    }
}
