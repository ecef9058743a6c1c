//! The positions of all actions of a schedule, in tables that the checks use.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_ids::{MicroBatchIndex, RankIndex, StageIndex};

use crate::action::{Action, Message};
use crate::dependencies::{Dependencies, Endpoint};
use crate::error::VerifyError;
use crate::lists::{Form, Place, Schedule, ScheduleMode, stages_by_rank};
use crate::task::{Compute, Task};

/// The position of an action that is in no list. No list has this many actions.
const ABSENT: u32 = u32::MAX;

/// The positions of all actions in the lists of their ranks.
///
/// A table proves that every action is on the rank of its stage, within the counts, known
/// to the dependencies and unique. It does not prove that any action exists.
pub(super) struct Table<'a> {
    pub(super) schedule: &'a Schedule,
    pub(super) dependencies: &'a Dependencies,
    /// The positions of programs, then of sends and receives of values, by [`Table::index`].
    positions: Vec<u32>,
    /// The positions of the actions that run once per step.
    once: BTreeMap<Action, usize>,
    /// The stages of each rank that has one. The lowest represents the rank in messages to all its stages.
    pub(super) stages: BTreeMap<RankIndex, Vec<StageIndex>>,
}

impl<'a> Table<'a> {
    /// Enters every action.
    ///
    /// The counts, the stage-to-rank map and the dependencies must have been checked before.
    pub(super) fn build(
        schedule: &'a Schedule,
        dependencies: &'a Dependencies,
    ) -> Result<Self, VerifyError> {
        let programs = Compute::ALL.len() * checked_rows(schedule)?;
        let messages = 2 * dependencies.edges().len() * schedule.micro_batches;
        let mut table = Self {
            schedule,
            dependencies,
            positions: vec![ABSENT; programs + messages],
            once: BTreeMap::new(),
            stages: stages_by_rank(&schedule.stage_to_rank),
        };
        for at in schedule.places() {
            table.enter(at)?;
        }
        Ok(table)
    }

    fn enter(&mut self, at: Place) -> Result<(), VerifyError> {
        let (stages, micro_batches) = (self.schedule.stages, self.schedule.micro_batches);
        let (mode, form) = (self.schedule.mode, self.schedule.form);
        let within = |stage: StageIndex| stage.index() < stages;
        let message = at.action.message();
        let has_stages = message.is_none_or(|m| within(m.sender()) && within(m.receiver()));
        let micro_batch = at.action.micro_batch();
        let in_range = has_stages && micro_batch.is_none_or(|k| k.index() < micro_batches);
        let expected = self.schedule.rank_of(at.action.stage());
        let Some(expected) = expected.filter(|_| in_range) else {
            return Err(VerifyError::OutOfRange {
                at,
                stages,
                micro_batches,
            });
        };
        if !is_allowed(&at.action, mode, form) {
            return Err(VerifyError::NotAllowed { at, mode, form });
        }
        if at.rank != expected {
            return Err(VerifyError::WrongRank { at, expected });
        }
        match at.action {
            Action::Send(message) | Action::Receive(message) if !self.is_sent(message) => {
                Err(VerifyError::UnknownMessage { at })
            }
            Action::Sum { .. } | Action::Gather { .. } if !self.dependencies.has_replicas() => {
                Err(VerifyError::NoReplicas { at })
            }
            Action::Overlap(tasks) => {
                let [forward, backward] = tasks;
                let is_pair = forward.compute == Compute::Forward
                    && backward.compute != Compute::Forward
                    && self.schedule.rank_of(backward.stage) == Some(at.rank)
                    && backward.micro_batch.index() < micro_batches;
                if !is_pair {
                    return Err(VerifyError::Overlap { at });
                }
                let mut actions = tasks.into_iter().map(Action::Compute);
                actions.try_for_each(|action| self.enter_first(at, action))
            }
            action => self.enter_first(at, action),
        }
    }

    /// Enters an action, which must not be in the table.
    fn enter_first(&mut self, at: Place, action: Action) -> Result<(), VerifyError> {
        use Message::Values;
        let known = match (self.index(&action), action) {
            (Some(index), _) => {
                let position = std::mem::replace(&mut self.positions[index], at.position as u32);
                (position != ABSENT).then_some(position as usize)
            }
            (None, Action::Send(Values { .. }) | Action::Receive(Values { .. })) => {
                return Err(VerifyError::UnknownMessage { at });
            }
            (None, action) => self.once.insert(action, at.position),
        };
        known.map_or(Ok(()), |first| Err(VerifyError::Duplicate { at, first }))
    }

    /// Returns the entry of an action that runs for a micro-batch; `None` if the dependencies do not have its edge.
    fn index(&self, action: &Action) -> Option<usize> {
        let micro_batches = self.schedule.micro_batches;
        let programs = Compute::ALL.len();
        match action {
            Action::Compute(task) => {
                let row = task.stage.index() * micro_batches + task.micro_batch.index();
                Some(row * programs + task.compute.slot())
            }
            Action::Send(Message::Values { edge, micro_batch })
            | Action::Receive(Message::Values { edge, micro_batch }) => {
                let edge = self.dependencies.position(*edge)?;
                let row = edge * micro_batches + micro_batch.index();
                let is_received = matches!(action, Action::Receive(_));
                let first = self.schedule.stages * micro_batches * programs;
                Some(first + 2 * row + usize::from(is_received))
            }
            _ => None,
        }
    }

    /// Returns the position of an action in the list of the rank of its stage.
    pub(super) fn position(&self, action: &Action) -> Option<usize> {
        let Some(index) = self.index(action) else {
            return self.once.get(action).copied();
        };
        let position = self.positions[index];
        (position != ABSENT).then_some(position as usize)
    }

    /// Returns the position of the program that is an endpoint, on a micro-batch.
    pub(super) fn end(&self, end: Endpoint, micro_batch: MicroBatchIndex) -> Option<usize> {
        let program = |compute| Action::compute(end.stage, compute, micro_batch);
        let mut programs = end.programs().iter();
        programs.find_map(|compute| self.position(&program(*compute)))
    }

    /// Returns rank and position of the programs whose values a task reads.
    pub(super) fn producers(&self, task: Task) -> impl Iterator<Item = (RankIndex, usize)> + '_ {
        let edges = self.dependencies.read_by(task);
        let used = edges.filter(|edge| self.schedule.has_edge(*edge));
        used.filter_map(move |edge| {
            let position = self.end(edge.from, task.micro_batch)?;
            Some((self.rank(edge.from.stage), position))
        })
    }

    /// Returns the rank of a stage below the stage count.
    pub(super) fn rank(&self, stage: StageIndex) -> RankIndex {
        self.schedule.stage_to_rank[stage.index()]
    }

    /// Returns whether a message of this mode goes from one rank to another. Edges that are no dependencies have no
    /// index, which [`enter_first`](Self::enter_first) reports.
    fn is_sent(&self, message: Message) -> bool {
        let (schedule, dependencies) = (self.schedule, self.dependencies);
        let is_training = schedule.mode == ScheduleMode::Training;
        let is_known = match message {
            Message::Values { edge, .. } => schedule.has_edge(edge),
            Message::Tie(tie) => is_training && dependencies.ties().binary_search(&tie).is_ok(),
            Message::Norm { to, .. } => {
                let own = self.stages.get(&self.rank(to)).and_then(|own| own.first());
                let is_lowest = own == Some(&to);
                dependencies.has_global_norm() && is_training && is_lowest
            }
        };
        is_known && schedule.are_apart(message.sender(), message.receiver())
    }
}

/// Returns whether a schedule of this mode and form can have the action.
fn is_allowed(action: &Action, mode: ScheduleMode, form: Form) -> bool {
    let in_mode = match action {
        Action::Send(_) | Action::Receive(_) => true,
        Action::Compute(task) if task.compute == Compute::Forward => true,
        _ => mode == ScheduleMode::Training,
    };
    in_mode && (form == Form::Lowered || !action.tasks().is_empty())
}

/// Returns the number of stages times micro-batches, if the lists have that many forwards. Otherwise names the first missing
/// forward, in a time that is linear in the forwards.
///
/// Counts from a file may be arbitrary; a table is allocated only if the lists have that many actions.
fn checked_rows(schedule: &Schedule) -> Result<usize, VerifyError> {
    let (stages, micro_batches) = (schedule.stages, schedule.micro_batches);
    let tasks = schedule.ranks.iter().flatten().flat_map(Action::tasks);
    let forwards = tasks.filter(|task| task.compute == Compute::Forward);
    if let Some(rows) = stages.checked_mul(micro_batches)
        && rows <= forwards.clone().count()
    {
        return Ok(rows);
    }
    let present: BTreeSet<Task> = forwards.copied().collect();
    for (stage, &rank) in schedule.stage_to_rank.iter().enumerate() {
        for k in (0..micro_batches).map(MicroBatchIndex::new) {
            let forward = Task::new(StageIndex::new(stage), Compute::Forward, k);
            if !present.contains(&forward) {
                let action = Action::Compute(forward);
                return Err(VerifyError::Missing { rank, action });
            }
        }
    }
    Err(VerifyError::Empty {
        stages,
        micro_batches,
    })
}
