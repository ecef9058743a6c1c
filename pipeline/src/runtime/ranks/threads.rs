//! Ranks that are threads of this process, and a rank whose stages have their parameters only while they run.

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rayon::{ThreadPool, ThreadPoolBuilder};
use tinderbox_deferred::Source;
use tinderbox_world::Channel;
use tinderbox_world::link::{Crew, CrewError, Member, Receiver, is_simulated};

use super::ranks::{Payload, Ranks, To};
use crate::error::Result;
use crate::runtime::execute::{RankCall, RankRequest, run_rank};
use crate::runtime::link::{Abort, Link, LocalLink, local_links};
use crate::runtime::pass::{Pass, Passes};
use crate::runtime::program::CutProgram;
use crate::runtime::progress::{Counted, RankProgress, Watch};
use crate::runtime::round::{Reported, Round};
use crate::runtime::stage::RankSetup;
use crate::schedule::RankIndex;
use crate::{PipelineError, RankError, StartError};

/// One thread per rank of this process, which has all ranks, or one rank of a world. Dropping it ends and joins the threads.
#[derive(Debug)]
pub(crate) struct Threads {
    /// `None` after it has ended.
    crew: Option<Crew<RankRequest, PipelineError>>,
    /// The progress of each rank with the current call.
    watch: Arc<Watch>,
    abort: Abort,
    timeout: Duration,
}

/// Wraps a rank's in-process link.
pub(crate) type Wrap = dyn Fn(RankIndex, LocalLink) -> Box<dyn Link>;

/// Creates the links between all ranks, which are in this process. The links may be wrapped.
pub(crate) fn linked(
    setups: Vec<RankSetup>,
    wrap: Option<&Wrap>,
    abort: &Abort,
    timeout: Duration,
) -> Vec<(RankSetup, Box<dyn Link>)> {
    let links = local_links(setups.len(), abort, timeout);
    let linked = setups.into_iter().zip(links).map(|(setup, link)| {
        let link: Box<dyn Link> = match wrap {
            Some(wrap) => wrap(setup.rank, link),
            None => Box::new(link),
        };
        (setup, link)
    });
    linked.collect()
}

impl Threads {
    /// Starts a thread for each rank of this process, with its link to all others. Each rank computes with its own pool of
    /// threads.
    pub(crate) fn new(
        ranks: Vec<(RankSetup, Box<dyn Link>)>,
        source: &Arc<dyn Source>,
        threads_per_rank: usize,
        abort: Abort,
        timeout: Duration,
        others: Option<Weak<Channel>>,
    ) -> Result<Self> {
        let first = ranks.first().map(|(setup, _)| setup.rank);
        // Without a rank, it is not used.
        let first = first.unwrap_or(RankIndex::new(0));
        let progress = ranks.iter().map(|(setup, _)| setup.progress.clone());
        let own = (first, progress.collect());
        let watch = Arc::new(Watch { own, others });
        let members = ranks.into_iter().map(|(setup, link)| {
            let (source, watch) = (source.clone(), watch.clone());
            let pool = pool(setup.rank, threads_per_rank)?;
            let body = move |link: &mut Box<dyn Link>, requests: &Receiver<RankRequest>| {
                let run = || run_rank(setup, watch, &mut **link, source, requests);
                match pool {
                    // The CPU backend works in the pool that it is called from.
                    Some(pool) => pool.install(run),
                    None => run(),
                }
            };
            Ok(Member { link, body })
        });
        let members = members.collect::<Result<Vec<_>, StartError>>()?;
        let lost = |rank| RankError::Ended { rank }.into();
        let crew = Crew::start_at(first, &abort, members, lost);
        Ok(Self {
            crew: Some(crew.map_err(|error| stopped(error, "start"))?),
            watch,
            abort,
            timeout,
        })
    }

    /// Returns the progress of the first rank of this process; `None` if it has no rank.
    pub(super) fn progress(&self) -> Option<Arc<RankProgress>> {
        let (_, progress) = &self.watch.own;
        progress.first().cloned()
    }

    /// Runs a round; a pass is for streamed stages.
    fn run_pass(
        &mut self,
        round: &Arc<Round>,
        pass: Option<&Arc<Pass>>,
        request: &'static str,
    ) -> Result<Vec<Reported>> {
        let make = |_, reply| RankRequest::Round(round.clone(), pass.cloned(), reply);
        let mut progressed = progressed(&self.watch);
        let mut is_idle = false;
        let continues = || {
            let was_idle = std::mem::replace(&mut is_idle, !progressed());
            !(was_idle && is_idle)
        };
        let crew = self.crew.as_mut().ok_or(PipelineError::Stopped)?;
        let reports = crew.ask_while(self.timeout, continues, make);
        reports.map_err(|error| match error {
            CrewError::Timeout { rank, timeout } => RankError::Idle {
                rank,
                request,
                timeout: timeout.saturating_mul(2),
            }
            .into(),
            error => stopped(error, request),
        })
    }
}

impl Ranks for Threads {
    fn run(&mut self, round: &Arc<Round>, request: &'static str) -> Result<Vec<Reported>> {
        self.run_pass(round, None, request)
    }

    fn call(&mut self, request: &'static str, call: RankCall) -> Result<Vec<Box<dyn Any + Send>>> {
        let make = |_, reply| RankRequest::Call(call.clone(), reply);
        let crew = self.crew.as_mut().ok_or(PipelineError::Stopped)?;
        let results = crew.ask_while(self.timeout, progressed(&self.watch), make);
        results.map_err(|error| match error {
            CrewError::Timeout { rank, timeout } => match self.watch.counted(rank) {
                // It has never reported any progress.
                counted if counted == Counted::default() => stopped(error, request),
                Counted { made, begun, bytes } => RankError::Stalled {
                    rank,
                    request,
                    timeout,
                    parameters: made,
                    of: begun,
                    bytes,
                }
                .into(),
            },
            error => stopped(error, request),
        })
    }

    fn exchange_bytes(&mut self, _: To, given: Payload) -> Result<Vec<Payload>> {
        match self.crew {
            Some(_) => Ok(vec![given]),
            None => Err(PipelineError::Stopped),
        }
    }

    fn is_aborted(&self) -> bool {
        self.abort.is_triggered()
    }

    fn end(&mut self) {
        self.crew = None;
    }
}

/// The threads that a rank computes with; `None` in a simulation, which has one thread.
fn pool(rank: RankIndex, threads: usize) -> Result<Option<ThreadPool>, StartError> {
    if is_simulated() {
        return Ok(None);
    }
    let pool = ThreadPoolBuilder::new().num_threads(threads);
    let pool = pool.thread_name(move |thread| format!("rank-{rank}-{thread}"));
    let pool = pool.build().map_err(|error| {
        let source = std::io::Error::other(error);
        StartError::Spawn { rank, source }
    })?;
    Ok(Some(pool))
}

/// Whether any rank has reported progress since the last call.
fn progressed(watch: &Watch) -> impl FnMut() -> bool {
    let mut seen = watch.reports();
    move || {
        let now = watch.reports();
        std::mem::replace(&mut seen, now) != now
    }
}

/// Converts an error of the ranks to a pipeline error.
fn stopped(error: CrewError<PipelineError>, request: &'static str) -> PipelineError {
    match error {
        CrewError::Failed { reason } => reason,
        CrewError::Timeout { rank, timeout } => RankError::Timeout {
            rank,
            request,
            timeout,
        }
        .into(),
        CrewError::Stopped => PipelineError::Stopped,
        CrewError::Spawn { rank, source } => StartError::Spawn { rank, source }.into(),
    }
}

/// The plans of passes, shared by the rank and by predictions; `None` until the memory of the process is measured.
pub(crate) type SharedPasses = Arc<Mutex<Option<Passes>>>;

/// One rank on a thread, which plans a pass over its stages before each round.
pub(crate) struct StreamingRank {
    pub(crate) thread: Threads,
    pub(crate) passes: SharedPasses,
}

impl Ranks for StreamingRank {
    fn run(&mut self, round: &Arc<Round>, request: &'static str) -> Result<Vec<Reported>> {
        let part = &round.parts[0];
        let cuts: Vec<&CutProgram> = round.cuts(part).collect();
        let pass = {
            let mut passes = self.passes.lock();
            let passes = passes.as_mut().ok_or(PipelineError::Stopped)?;
            passes.pass(&part.lists, &cuts, round.carries.other_bytes)?
        };
        self.thread.run_pass(round, Some(&pass), request)
    }

    fn call(&mut self, request: &'static str, call: RankCall) -> Result<Vec<Box<dyn Any + Send>>> {
        self.thread.call(request, call)
    }

    fn exchange_bytes(&mut self, to: To, given: Payload) -> Result<Vec<Payload>> {
        self.thread.exchange_bytes(to, given)
    }

    fn is_aborted(&self) -> bool {
        self.thread.is_aborted()
    }

    fn end(&mut self) {
        self.thread.end();
    }
}
