//! The threads of a pipeline's ranks, and requests to them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tinderbox_deferred::Source;
use tinderbox_fake::DynTensor;
use tinderbox_link::{CrewError, Crossbeam, Member};
use tinderbox_world::{Channel, World};

use super::link::{Abort, Link};
use super::local::{LocalLink, local_links};
use super::progress::{Counted, RankProgress, Watch};
use super::rank::{RankRequest, RankSetup, run_rank};
use super::recovery::Backups;
use super::remote::{Notice, Remote, To, join};
use super::round::{Round, RoundReport};
use super::stage::Stage;
use crate::PipelineError;
use crate::schedule::RankIndex;

/// Wraps a rank's in-process link.
pub(super) type Wrap = dyn Fn(RankIndex, LocalLink) -> Box<dyn Link>;

/// One thread per rank of this process: all ranks, or in a world of processes one of them. Dropping it ends and joins them
/// all.
#[derive(Debug)]
pub(super) struct Crew {
    /// None after it has ended.
    ranks: Option<tinderbox_link::Crew<RankRequest, PipelineError, Crossbeam>>,
    /// The progress of each rank with the current call.
    progress: Vec<Arc<RankProgress>>,
    timeout: Duration,
    /// The other processes.
    remote: Option<Remote>,
}

impl Crew {
    pub(super) fn start(
        (setups, abort): (Vec<RankSetup>, &Abort),
        source: &Arc<dyn Source>,
        threads_per_rank: usize,
        timeout: Duration,
        wrap: Option<&Wrap>,
        world: Option<&World>,
        backups: Option<Arc<Backups>>,
    ) -> Result<Self, PipelineError> {
        let progress: Vec<_> = setups.iter().map(|setup| setup.progress.clone()).collect();
        let own = world.map_or(RankIndex::new(0), World::rank);
        let first = setups.first().map_or(own, |setup| setup.rank);
        let (links, remote): (Vec<Box<dyn Link>>, _) = match world {
            Some(world) => {
                let (link, remote) = join(world, abort, timeout, backups);
                let progress = progress.clone();
                remote.report(move || progress.first()?.doing());
                (vec![link], Some(remote))
            }
            None => {
                let links = local_links(setups.len(), abort, timeout).into_iter();
                let links = setups.iter().zip(links).map(|(setup, link)| match wrap {
                    Some(wrap) => wrap(setup.rank, link),
                    None => Box::new(link) as Box<dyn Link>,
                });
                (links.collect(), None)
            }
        };
        let watch = Arc::new(Watch {
            own: (first, progress.clone()),
            others: remote.as_ref().map(Remote::channel),
        });
        let members = setups.into_iter().zip(links).map(|(setup, link)| {
            let rank = setup.rank;
            let (source, watch) = (source.clone(), watch.clone());
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads_per_rank)
                .thread_name(move |thread| format!("rank-{rank}-{thread}"))
                .build()
                .map_err(|error| {
                    let source = std::io::Error::other(error);
                    PipelineError::Spawn { rank, source }
                })?;
            let body = move |link: &mut Box<dyn Link>, requests: &Receiver<RankRequest>| {
                // The CPU backend works in the pool that it is called from.
                pool.install(|| run_rank(setup, watch, &mut **link, &source, requests));
            };
            Ok(Member { link, body })
        });
        let members = members.collect::<Result<Vec<_>, PipelineError>>()?;
        let lost = |rank| PipelineError::Ended { rank };
        let ranks = tinderbox_link::Crew::start_at(first, abort, members, lost)
            .map_err(|error| stopped(error, "start"))?;
        Ok(Self {
            ranks: Some(ranks),
            progress,
            timeout,
            remote,
        })
    }

    /// Ends the ranks, and leaves the other processes.
    pub(super) fn end(&mut self) {
        self.ranks = None;
        self.remote = None;
    }

    /// How long a message may take.
    pub(super) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether the ranks were stopped by a failure.
    pub(super) fn is_aborted(&self) -> bool {
        self.remote.as_ref().is_none_or(Remote::is_aborted)
    }

    /// Returns the channel to the other processes.
    pub(super) fn channel(&self) -> Option<Weak<Channel>> {
        self.remote.as_ref().map(Remote::channel)
    }

    /// Returns the rank of this process, if the others are in other processes.
    pub(super) fn own(&self) -> Option<RankIndex> {
        self.remote.as_ref().map(Remote::own)
    }

    /// Tells the other processes what this one is about to do.
    pub(super) fn notify(
        &self,
        notice: impl FnOnce() -> Result<Notice, PipelineError>,
    ) -> Result<(), PipelineError> {
        let Some(remote) = &self.remote else {
            return Ok(());
        };
        remote.notify(notice()?);
        Ok(())
    }

    /// Gives a value and tensors to all processes, or to the first, and returns the values and tensors of all that give to this
    /// one, in the order of the ranks. Without other processes, returns the own ones.
    pub(super) fn exchange<T: Serialize + DeserializeOwned>(
        &mut self,
        to: To,
        value: T,
        tensors: Vec<DynTensor>,
    ) -> Result<Vec<(T, Vec<DynTensor>)>, PipelineError> {
        match &mut self.remote {
            None if self.ranks.is_none() => Err(PipelineError::Stopped),
            None => Ok(vec![(value, tensors)]),
            Some(remote) => {
                let exchanged = remote.exchange(to, value, tensors);
                exchanged.map_err(|error| self.notified(error))
            }
        }
    }

    /// Returns the first rank of another process that can't continue, and why.
    pub(super) fn agree(
        &mut self,
        own: Option<String>,
    ) -> Result<Option<(RankIndex, String)>, PipelineError> {
        let all = self.exchange(To::All, own, Vec::new())?;
        let mut ranks = all.into_iter().enumerate();
        Ok(ranks.find_map(|(rank, (reason, _))| Some((RankIndex::new(rank), reason?))))
    }

    /// Notifies the other processes of an error that ends this pipeline, and returns it.
    pub(super) fn notified(&self, error: PipelineError) -> PipelineError {
        if let Some(remote) = &self.remote {
            remote.fail(&error);
        }
        error
    }

    /// Returns the position of a rank among the ranks of this process.
    fn position(&self, rank: RankIndex) -> usize {
        rank.index() - self.own().map_or(0, RankIndex::index)
    }

    /// Runs a round on every rank and returns the reports in the order of the ranks. It may take any
    /// time as long as some rank finishes an action within two timeouts: a rank that waits for a
    /// message aborts earlier and names the message.
    pub(super) fn round(
        &mut self,
        round: Arc<Round>,
        request: &'static str,
    ) -> Result<Vec<RoundReport>, PipelineError> {
        let make = |_, reply| RankRequest::Round(round.clone(), reply);
        let mut progressed = progressed(&self.progress);
        let mut is_idle = false;
        let go_on = || {
            let was_idle = std::mem::replace(&mut is_idle, !progressed());
            !(was_idle && is_idle)
        };
        let Some(ranks) = &mut self.ranks else {
            return Err(PipelineError::Stopped);
        };
        let reports = ranks.ask_while(self.timeout, go_on, make);
        let reports = reports.map_err(|error| match error {
            CrewError::Timeout { rank, timeout } => PipelineError::Idle {
                rank,
                request,
                timeout: timeout.saturating_mul(2),
            },
            error => stopped(error, request),
        });
        reports.map_err(|error| self.notified(error))
    }

    /// Runs code on every rank's thread and returns the results in the order of the ranks. It may take
    /// any time as long as some rank reports progress within each timeout.
    pub(super) fn call<R: Send + 'static>(
        &mut self,
        request: &'static str,
        call: impl Fn(RankIndex, &mut [Stage]) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>, PipelineError> {
        let call = Arc::new(call);
        let make = |_, reply: Sender<(RankIndex, R)>| {
            let call = call.clone();
            RankRequest::Call(Box::new(move |rank, stages| {
                // The driver may have stopped waiting.
                let _ = reply.send((rank, call(rank, stages)));
            }))
        };
        let progressed = progressed(&self.progress);
        let Some(ranks) = &mut self.ranks else {
            return Err(PipelineError::Stopped);
        };
        let results = ranks.ask_while(self.timeout, progressed, make);
        let results = results.map_err(|error| match error {
            CrewError::Timeout { rank, timeout } => {
                match self.progress[self.position(rank)].counted() {
                    // It has never reported any progress.
                    counted if counted == Counted::default() => stopped(error, request),
                    Counted { made, begun, bytes } => PipelineError::Stalled {
                        rank,
                        request,
                        timeout,
                        parameters: made,
                        of: begun,
                        bytes,
                    },
                }
            }
            error => stopped(error, request),
        });
        results.map_err(|error| self.notified(error))
    }
}

/// Whether any rank has reported progress since the last call.
fn progressed(progress: &[Arc<RankProgress>]) -> impl FnMut() -> bool {
    let look = || progress.iter().map(|rank| rank.reports()).sum::<u64>();
    let mut seen = look();
    move || {
        let now = look();
        std::mem::replace(&mut seen, now) != now
    }
}

/// Converts an error of the ranks to a pipeline error.
fn stopped(error: CrewError<PipelineError>, request: &'static str) -> PipelineError {
    match error {
        CrewError::Failed { reason } => reason,
        CrewError::Timeout { rank, timeout } => PipelineError::Timeout {
            rank,
            request,
            timeout,
        },
        CrewError::Stopped => PipelineError::Stopped,
        CrewError::Spawn { rank, source } => PipelineError::Spawn { rank, source },
    }
}
