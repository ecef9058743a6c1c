//! Ranks of which each is a process of a world: this process runs its own, and reaches the others by messages.

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tinderbox_fake::DynTensor;
use tinderbox_world::{Channel, World};

use super::notice::Notice;
use super::ranks::{Payload, RankCall, Ranks, To};
use super::remote::{Remote, join};
use super::threads::{Start, Threads};
use crate::PipelineError;
use crate::error::Result;
use crate::runtime::round::{Reported, Round};
use crate::runtime::snapshots::Backups;
use crate::schedule::RankIndex;

/// The rank of this process, and the others. A process beyond the ranks of the plan has none, and makes the same calls.
#[derive(Debug)]
pub(crate) struct Processes {
    own: Threads,
    /// None after it has ended.
    remote: Option<Remote>,
    rank: RankIndex,
}

impl Processes {
    /// Joins the ranks of the other processes, and starts the rank of this one, if it has one.
    pub(crate) fn new(
        start: Start<'_>,
        world: &World,
        backups: Option<Arc<Backups>>,
    ) -> Result<Self> {
        let (link, remote) = join(world, &start.abort, start.timeout, backups);
        let first = start.setups.first();
        let progress = first.map(|setup| setup.progress.clone());
        (remote.channel).report(move || progress.as_ref()?.doing());
        let rank = world.rank();
        let others = Some(Arc::downgrade(&remote.channel));
        Ok(Self {
            own: Threads::start(rank, start, vec![link], others)?,
            remote: Some(remote),
            rank,
        })
    }

    /// Notifies the others of an error.
    fn notify<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| self.fail(error))
    }
}

impl Ranks for Processes {
    fn own(&self) -> Option<RankIndex> {
        self.remote.as_ref().map(|_| self.rank)
    }

    fn timeout(&self) -> Duration {
        self.own.timeout()
    }

    fn run(&mut self, round: &Arc<Round>, request: &'static str) -> Result<Vec<Reported>> {
        let reports = self.own.run(round, request);
        self.notify(reports)
    }

    fn call(&mut self, request: &'static str, call: RankCall) -> Result<Vec<Box<dyn Any + Send>>> {
        let results = self.own.call(request, call);
        self.notify(results)
    }

    fn exchange_bytes(
        &mut self,
        to: To,
        value: Vec<u8>,
        tensors: Vec<DynTensor>,
    ) -> Result<Vec<Payload>> {
        let remote = self.remote.as_mut().ok_or(PipelineError::Stopped)?;
        let exchanged = remote.exchange(to, value, tensors);
        self.notify(exchanged)
    }

    fn announce(&self, notice: Notice) {
        if let Some(remote) = &self.remote {
            remote.announce(notice);
        }
    }

    fn fail(&self, error: &PipelineError) {
        if let Some(remote) = &self.remote {
            remote.fail(error);
        }
    }

    fn is_aborted(&self) -> bool {
        self.remote.is_none() || self.own.is_aborted()
    }

    fn channel(&self) -> Option<Weak<Channel>> {
        let remote = self.remote.as_ref()?;
        Some(Arc::downgrade(&remote.channel))
    }

    fn end(&mut self) {
        self.own.end();
        self.remote = None;
    }
}
