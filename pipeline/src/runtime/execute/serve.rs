//! The thread of a rank, which serves the requests of the driver and runs its lists of actions.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tinderbox_deferred::Source;
use tinderbox_world::link::{Channels, Received, Receiver, Sender};

use super::on_rank::{OnRank, Rank, since};
use crate::error::Result;
use crate::runtime::caught::{action_error, caught, guarded};
use crate::runtime::interpreter::{ActionInterpreter, Step};
use crate::runtime::pass::Pass;
use crate::runtime::points::{Point, reach};
use crate::runtime::progress::Watch;
use crate::runtime::round::{Reported, Round};
use crate::runtime::stage::RankSetup;
use crate::schedule::{Action, MicroBatchIndex, RankIndex, RankTimeline, Span};
use crate::{ActionError, ActionResult, Link, RankError, Stage};

/// A call that runs on every rank's thread, with its stages.
pub(crate) type RankCall =
    Arc<dyn Fn(RankIndex, &mut [Stage]) -> Box<dyn Any + Send> + Send + Sync>;

/// The sender for the result of a rank.
type Reply<T> = Sender<(RankIndex, T)>;

/// A request of the driver to a rank.
pub(crate) enum RankRequest {
    /// Runs a list of actions and reports; a pass is for streamed stages.
    Round(Arc<Round>, Option<Arc<Pass>>, Reply<Reported>),
    /// Runs code of the driver.
    Call(RankCall, Reply<Box<dyn Any + Send>>),
}

/// Creates the stages of a rank, then serves requests until their sender is dropped. If the parameters
/// can't be materialized, or an action fails or panics, it aborts all ranks through the link, and ends.
///
/// It uses the rayon pool in which it is called.
pub(crate) fn run_rank(
    setup: RankSetup,
    watch: Arc<Watch>,
    link: &mut dyn Link,
    source: Arc<dyn Source>,
    requests: &Receiver<RankRequest>,
) {
    let (rank, abort) = (setup.rank, setup.abort.clone());
    let served = attempt(rank, "MATERIALIZE", || Ok(Rank::new(setup, watch, source)?));
    let served = served.and_then(|mut state| state.serve(link, requests));
    if let Err(error) = served {
        match abort.is_triggered() {
            // An effect of an earlier failure.
            true => tracing::debug!(rank = rank.index(), %error, "rank ends"),
            false => tracing::error!(rank = rank.index(), %error, "rank aborts"),
        }
        link.abort(error);
    }
}

impl Rank {
    fn serve(&mut self, link: &mut dyn Link, requests: &Receiver<RankRequest>) -> Result<()> {
        let (rank, abort) = (self.setup.rank, self.setup.abort.clone());
        let channels = abort.channels();
        let never = channels.deadline(Duration::MAX);
        while let Received::Message(request) = channels.receive(requests, abort.signal(), never) {
            match request {
                RankRequest::Round(round, pass, report) => {
                    let run = || Ok(run_list(self, &round, pass.as_ref(), link)?);
                    let done = attempt(rank, "ROUND", run)?;
                    // The driver may have stopped waiting.
                    let _ = channels.send(&report, (rank, done));
                }
                RankRequest::Call(call, reply) => {
                    self.setup.progress.reset_counts();
                    let result = attempt(rank, "CALL", || Ok(call(rank, &mut self.stages)))?;
                    let _ = channels.send(&reply, (rank, result));
                }
            }
        }
        Ok(())
    }
}

/// Runs code that is not an action of a schedule; converts a panic to an error.
fn attempt<T>(rank: RankIndex, name: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    guarded(run).unwrap_or_else(|message| {
        Err(action_error(rank, (None, None), name, ActionError::Panicked { message }).into())
    })
}

/// Runs the list of a rank in a round.
pub(super) fn run_list(
    rank: &mut Rank,
    round: &Round,
    pass: Option<&Arc<Pass>>,
    link: &mut dyn Link,
) -> Result<Reported, RankError> {
    for stage in &mut rank.stages {
        stage.begin_round(&round.kept, &round.carries.existing);
    }
    let setup = rank.setup.clone();
    let part = &round.parts[setup.replica];
    let actions = part.lists.schedule.actions(setup.place);
    let mut measured = round.epoch.map(|epoch| Measured::new(epoch, rank));
    let ranks = setup.layout.ranks.iter();
    let step = Step {
        programs: round.cuts(part).map(|cut| &*cut.programs.stages).collect(),
        lists: Some(&*part.lists),
        is_local: ranks.map(|of| *of == setup.place).collect(),
    };
    let mut run = ActionInterpreter::new(step, OnRank::new(rank, round, link));
    for action in actions {
        named(&mut run, action, |run| run.host.announce(action))?;
    }
    if let (Some(first), Some(pass)) = (actions.first(), pass) {
        named(&mut run, first, |run| {
            let streaming = run.host.rank.streaming.as_mut();
            streaming.map_or(Ok(()), |streaming| streaming.begin(pass))
        })?;
    }
    for action in actions {
        let start = round.epoch.map(since);
        setup.progress.begin_action(round.number, *action);
        named(&mut run, action, |run| {
            reach(Point::Action(*action));
            let rank = setup.rank.index();
            let _span = tracing::trace_span!("action", rank, %action).entered();
            let rank = &mut *run.host.rank;
            if let Some(streaming) = &mut rank.streaming {
                let place = (&mut *rank.stages, action.stage());
                streaming.enter(place, round, &mut run.values)?;
            }
            run.act(action)
        })?;
        setup.progress.report();
        if let (Some(measured), Some(start)) = (&mut measured, start) {
            measured.add(*action, start, &run.host);
        }
    }
    if let Some(last) = actions.last() {
        named(&mut run, last, |run| {
            let rank = &mut *run.host.rank;
            let streaming = rank.streaming.as_mut();
            streaming.map_or(Ok(()), |streaming| {
                streaming.leave(&mut rank.stages, round, &mut run.values)
            })
        })?;
    }
    let left = run.values.left();
    debug_assert_eq!(left, None, "every value of a round is used");
    let mut host = run.host;
    host.report.timeline = measured.map(|measured| RankTimeline {
        program_time: host.program_time,
        ..measured.timeline
    });
    host.read_report()
}

/// Runs code of an action; its error names the action.
fn named<'a>(
    state: &mut ActionInterpreter<'a, OnRank<'a>>,
    action: &Action,
    run: impl FnOnce(&mut ActionInterpreter<'a, OnRank<'a>>) -> ActionResult,
) -> Result<(), RankError> {
    let ran = caught(|| run(state));
    ran.map_err(|source| {
        let (part, setup) = (state.host.part, &state.host.rank.setup);
        let micro_batch = action.micro_batch();
        let micro_batch = micro_batch.map(|k| MicroBatchIndex::new(part.index(k)));
        let place = (Some(action.stage()), micro_batch);
        action_error(setup.rank, place, &action.to_string(), source)
    })
}

/// The times of actions, and the memory of the rank.
struct Measured {
    epoch: Instant,
    timeline: RankTimeline,
    /// Bytes of the parameters.
    parameters: u64,
    /// Bytes of everything else that stages hold.
    held: u64,
}

impl Measured {
    fn new(epoch: Instant, rank: &Rank) -> Self {
        Self {
            epoch,
            timeline: RankTimeline::default(),
            parameters: rank.stages.iter().map(Stage::parameter_bytes).sum(),
            held: held(rank),
        }
    }

    /// Adds an action that has ended.
    fn add(&mut self, action: Action, start: u64, host: &OnRank<'_>) {
        let end = since(self.epoch);
        self.timeline.spans.push(Span { action, start, end });
        if !matches!(action, Action::Send(_) | Action::Receive(_)) {
            self.held = held(host.rank);
        }
        let held = self.parameters + self.held + host.bytes;
        let bytes = &mut self.timeline.bytes;
        if bytes.last().is_none_or(|last| last.1 != held) {
            bytes.push((end, held));
        }
    }
}

/// Bytes that the stages of a rank hold in addition to parameters.
fn held(rank: &Rank) -> u64 {
    let held = rank.stages.iter().map(|stage| {
        let gradients = stage.gradients.bytes();
        gradients + stage.cast_bytes() + stage.carried_bytes()
    });
    held.sum()
}
