//! The threads of a pipeline's ranks, and talking to them.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded, select, unbounded};
use tinderbox_deferred::Source;

use super::group::SoloGroup;
use super::link::{Abort, Link, deadline};
use super::local::{LocalLink, local_links};
use super::rank::{RankSetup, Request, RequestKind, run_rank};
use super::stage::Stage;
use super::step::{Round, RoundReport};
use crate::PipelineError;
use crate::schedule::RankIndex;

/// How long the driver waits for the reason of a rank that is known to have failed.
const REASON_TIMEOUT: Duration = Duration::from_millis(500);

/// Makes a rank's link from the in-process one.
pub(super) type Wrap = dyn Fn(RankIndex, LocalLink) -> Box<dyn Link>;

/// One thread per rank. Dropping it ends and joins them all.
#[derive(Debug)]
pub(super) struct Crew {
    requests: Vec<Sender<Request>>,
    threads: Vec<JoinHandle<()>>,
    abort: Abort,
    timeout: Duration,
    /// Set by the first error: the ranks have ended.
    stopped: bool,
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
        let mut crew = Self {
            requests: Vec::new(),
            threads: Vec::new(),
            abort: abort.clone(),
            timeout,
            stopped: false,
        };
        for (setup, link) in setups.into_iter().zip(links) {
            let rank = setup.rank;
            let mut link: Box<dyn Link> = match wrap {
                Some(wrap) => wrap(rank, link),
                None => Box::new(link),
            };
            let (sender, requests) = unbounded();
            let source = source.clone();
            let spawned = rayon::ThreadPoolBuilder::new()
                .num_threads(threads_per_rank)
                .thread_name(move |thread| format!("rank-{rank}-{thread}"))
                .build()
                .map_err(std::io::Error::other)
                .and_then(|pool| {
                    let name = format!("rank-{rank}");
                    std::thread::Builder::new().name(name).spawn(move || {
                        // The CPU backend works in the pool that it is called from.
                        let ended = pool.install(|| {
                            run_rank(setup, &mut *link, &mut SoloGroup, &source, &requests)
                        });
                        if let Err(ended) = ended {
                            tracing::error!("{ended}");
                        }
                    })
                });
            let thread = spawned.map_err(|source| PipelineError::Spawn { rank, source })?;
            crew.requests.push(sender);
            crew.threads.push(thread);
        }
        Ok(crew)
    }

    pub(super) fn ranks(&self) -> usize {
        self.requests.len()
    }

    /// Runs a round on every rank; the reports come in the order of the ranks.
    pub(super) fn round(
        &mut self,
        round: Round,
        request: &'static str,
    ) -> Result<Vec<RoundReport>, PipelineError> {
        let round = Arc::new(round);
        // A rank that waits for a message gives up first, and names the message.
        let timeout = self.timeout.saturating_mul(2);
        self.ask(request, timeout, |_, reply| {
            RequestKind::Round(round.clone(), reply)
        })
    }

    /// Runs code on every rank's thread; the results come in the order of the ranks.
    pub(super) fn call<R: Send + 'static>(
        &mut self,
        request: &'static str,
        call: impl Fn(RankIndex, &mut [Stage]) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>, PipelineError> {
        let call = Arc::new(call);
        self.ask(request, self.timeout, |_, reply: Sender<(RankIndex, R)>| {
            let call = call.clone();
            RequestKind::Call(Box::new(move |rank, stages| {
                // The driver may have given up waiting.
                let _ = reply.send((rank, call(rank, stages)));
            }))
        })
    }

    fn ask<R>(
        &mut self,
        request: &'static str,
        timeout: Duration,
        make: impl Fn(RankIndex, Sender<(RankIndex, R)>) -> RequestKind,
    ) -> Result<Vec<R>, PipelineError> {
        if self.stopped {
            return Err(PipelineError::Stopped);
        }
        let (sender, replies) = bounded(self.ranks());
        for (rank, requests) in self.requests.iter().enumerate() {
            let rank = RankIndex::new(rank);
            if requests.send(Request(make(rank, sender.clone()))).is_err() {
                return Err(self.stop(PipelineError::Stopped));
            }
        }
        drop(sender);
        let deadline = deadline(timeout);
        let mut results: Vec<Option<R>> = (0..self.ranks()).map(|_| None).collect();
        while let Some(missing) = results.iter().position(Option::is_none) {
            let left = deadline.saturating_duration_since(Instant::now());
            select! {
                recv(replies) -> reply => match reply {
                    Ok((rank, result)) => results[rank.index()] = Some(result),
                    Err(_) => {
                        // A rank let go of its reply without one: it is about to say why.
                        let _ = self.abort.signal().recv_timeout(REASON_TIMEOUT);
                        return Err(self.stop(PipelineError::Stopped));
                    }
                },
                recv(self.abort.signal()) -> _ => return Err(self.stop(PipelineError::Stopped)),
                default(left) => {
                    let rank = RankIndex::new(missing);
                    return Err(self.stop(PipelineError::Timeout { rank, request, timeout }));
                }
            }
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// Ends all ranks and returns the first reason, or `otherwise` when none gave one.
    fn stop(&mut self, otherwise: PipelineError) -> PipelineError {
        // A rank that stalls inside an operation can't be joined: it ends when it next waits.
        let stalled = matches!(otherwise, PipelineError::Timeout { .. });
        self.abort.trigger(PipelineError::Stopped);
        self.stopped = true;
        self.requests.clear();
        if !stalled {
            self.join();
        }
        match self.abort.take_reason() {
            None | Some(PipelineError::Stopped) => otherwise,
            Some(reason) => reason,
        }
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // Panics inside a rank are caught there and reported through its link.
            let _ = thread.join();
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.requests.clear();
        if !self.stopped {
            self.join();
        }
    }
}
