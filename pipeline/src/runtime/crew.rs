//! The threads of a pipeline's ranks, and requests to them.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use tinderbox_deferred::Source;
use tinderbox_link::{CrewError, Crossbeam, Member};

use super::link::{Abort, Link};
use super::local::{LocalLink, local_links};
use super::progress::{Counted, RankProgress};
use super::rank::{RankRequest, RankSetup, run_rank};
use super::stage::Stage;
use super::step::{Round, RoundReport};
use crate::PipelineError;
use crate::schedule::RankIndex;

/// Wraps a rank's in-process link.
pub(super) type Wrap = dyn Fn(RankIndex, LocalLink) -> Box<dyn Link>;

/// One thread per rank. Dropping it ends and joins them all.
#[derive(Debug)]
pub(super) struct Crew {
    ranks: tinderbox_link::Crew<RankRequest, PipelineError, Crossbeam>,
    /// The progress of each rank with the current call.
    progress: Vec<Arc<RankProgress>>,
    timeout: Duration,
}

impl Crew {
    pub(super) fn start(
        setups: Vec<RankSetup>,
        source: &Arc<dyn Source>,
        threads_per_rank: usize,
        timeout: Duration,
        wrap: Option<&Wrap>,
    ) -> Result<Self, PipelineError> {
        let abort = Abort::default();
        let links = local_links(setups.len(), &abort, timeout);
        let progress = setups.iter().map(|setup| setup.progress.clone());
        let progress = progress.collect();
        let members = setups.into_iter().zip(links).map(|(setup, link)| {
            let rank = setup.rank;
            let link: Box<dyn Link> = match wrap {
                Some(wrap) => wrap(rank, link),
                None => Box::new(link),
            };
            let source = source.clone();
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
                pool.install(|| run_rank(setup, &mut **link, &source, requests));
            };
            Ok(Member { link, body })
        });
        let members = members.collect::<Result<Vec<_>, PipelineError>>()?;
        let lost = |rank| PipelineError::Ended { rank };
        let ranks = tinderbox_link::Crew::start(&abort, members, lost)
            .map_err(|error| stopped(error, "start"))?;
        Ok(Self {
            ranks,
            progress,
            timeout,
        })
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
        let reports = self.ranks.ask_while(self.timeout, go_on, make);
        reports.map_err(|error| match error {
            CrewError::Timeout { rank, timeout } => PipelineError::Idle {
                rank,
                request,
                timeout: timeout.saturating_mul(2),
            },
            error => stopped(error, request),
        })
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
        let results = self.ranks.ask_while(self.timeout, progressed, make);
        results.map_err(|error| match error {
            CrewError::Timeout { rank, timeout } => {
                match self.progress[rank.index()].counted() {
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
        })
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
