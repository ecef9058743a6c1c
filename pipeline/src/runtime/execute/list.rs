//! Runs one rank's list of actions.

use std::sync::Arc;
use std::time::Instant;

use super::on_rank::{OnRank, since};
use super::rank::Rank;
use crate::runtime::caught::{action_error, caught};
use crate::runtime::executor::{Executor, Step};
use crate::runtime::link::Link;
use crate::runtime::pass::{Pass, Streaming};
use crate::runtime::points::{Point, reach};
use crate::runtime::round::{Reported, Round};
use crate::runtime::stage::Stage;
use crate::schedule::{Action, MicroBatchIndex, RankTimeline, Span};
use crate::{ActionError, RankError};

/// Runs the list of a rank in a round.
pub(super) fn run_list(
    rank: &mut Rank,
    round: &Round,
    pass: Option<&Arc<Pass>>,
    link: &mut dyn Link,
) -> Result<Reported, RankError> {
    for stage in &mut rank.stages {
        stage.clear_gradients();
        stage.keep_loaded(&round.kept);
        stage.carried.retain(&round.carries.existing);
    }
    let setup = rank.setup.clone();
    let part = &round.parts[setup.replica];
    let actions = part.lists.schedule.actions(setup.place);
    let mut measured = round.epoch.map(|epoch| Measured::new(epoch, rank));
    let step = Step {
        programs: round.cuts(part).map(|cut| &*cut.programs.stages).collect(),
        lists: Some(&*part.lists),
        is_local: setup
            .layout
            .ranks
            .iter()
            .map(|of| *of == setup.place)
            .collect(),
    };
    let mut executor = Executor::new(step, OnRank::new(rank, round, link));
    for action in actions {
        named(&mut executor, action, |executor| {
            executor.host.announce(action)
        })?;
    }
    if let (Some(first), Some(pass)) = (actions.first(), pass) {
        named(&mut executor, first, |executor| {
            let begin = |streaming: &mut Streaming, _: &mut _, _: &_| streaming.begin(pass);
            executor.host.stream(begin)
        })?;
    }
    for action in actions {
        let start = round.epoch.map(since);
        setup.progress.begin_action(round.number, *action);
        named(&mut executor, action, |executor| {
            reach(Point::Action(*action));
            let rank = setup.rank.index();
            let _span = tracing::trace_span!("action", rank, %action).entered();
            let values = &mut executor.values;
            executor.host.stream(|streaming, stages, round| {
                streaming.enter((stages, action.stage()), round, values)
            })?;
            executor.act(action)
        })?;
        setup.progress.report();
        if let (Some(measured), Some(start)) = (&mut measured, start) {
            measured.add(*action, start, &executor.host);
        }
    }
    if let Some(last) = actions.last() {
        named(&mut executor, last, |executor| {
            let values = &mut executor.values;
            let leave = |streaming: &mut Streaming, stages: &mut _, round: &_| {
                streaming.leave(stages, round, values)
            };
            executor.host.stream(leave)
        })?;
    }
    let left = executor.values.left();
    debug_assert_eq!(left, None, "every value of a round is used");
    let mut host = executor.host;
    host.report.timeline = measured.map(|measured| RankTimeline {
        program_time: host.program_time,
        ..measured.timeline
    });
    host.read_report()
}

/// Runs code of an action; its error names the action.
fn named<'a>(
    executor: &mut Executor<'a, OnRank<'a>>,
    action: &Action,
    run: impl FnOnce(&mut Executor<'a, OnRank<'a>>) -> Result<(), ActionError>,
) -> Result<(), RankError> {
    let ran = caught(|| run(executor));
    ran.map_err(|source| {
        let (part, setup) = (executor.host.part, &executor.host.rank.setup);
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
    /// Bytes of what stages hold beside them.
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

/// Bytes of what the stages of a rank hold beside parameters.
fn held(rank: &Rank) -> u64 {
    let held = rank.stages.iter().map(|stage| {
        let gradients = stage.gradients.bytes();
        gradients + stage.cast_bytes() + stage.carried_bytes()
    });
    held.sum()
}
