//! The verifier: rejects lists that cannot run, and names the action.

mod links;
pub(crate) mod rules;
mod symbolic;
mod table;

use std::collections::BTreeMap;

use tinderbox_ids::{MicroBatchIndex, RankIndex, StageIndex};

use crate::action::{Action, Message};
use crate::dependencies::{Dependencies, Edge, Endpoint, Tie};
use crate::error::VerifyError;
use crate::link_model::LinkModel;
use crate::lists::{Form, Schedule, ScheduleMode};
use crate::task::{Compute, Task};

use links::Waits;
pub(crate) use links::{Links, Need};
use rules::Rule;
use table::Table;

/// Checks that every rank can run its list to the end, and that the step is then complete.
///
/// In lists that pass:
///
/// - every action is there once, on the rank of its stage, after the actions that it needs;
/// - every send has its receive;
/// - gradients are summed, and states updated, in micro-batch order;
/// - ranks never wait for each other in a cycle.
///
/// Compute-only lists are checked with their dependencies implied. Linear in actions and in edges times micro-batches,
/// times logarithms of the numbers of edges and ranks. The messages of a clip by the norm of all gradients are stages
/// times ranks.
///
/// # Errors
///
/// The first fault found, as a [`VerifyError`].
pub fn verify(schedule: &Schedule, dependencies: &Dependencies) -> Result<(), VerifyError> {
    let unbounded = LinkModel::Unbounded;
    verify_over(schedule, dependencies, unbounded, &BTreeMap::new())
}

/// Checks the same as [`verify`], for links on which sends wait.
///
/// [`LinkModel::Bytes`] needs the bytes of the message of each edge. Edges that are not listed, ties and norms count as
/// 0 bytes. Only lowered lists have messages; for compute-only lists, [`lower_over`](crate::lower_over) finds an order of
/// sends and receives that links of every model can run.
///
/// # Errors
///
/// The first fault found; [`VerifyError::Deadlock`] names the cycle of sends and receives.
pub fn verify_over(
    schedule: &Schedule,
    dependencies: &Dependencies,
    link: LinkModel,
    message_bytes: &BTreeMap<Edge, u64>,
) -> Result<(), VerifyError> {
    let links = Links {
        model: link,
        message_bytes,
    };
    visit(schedule, dependencies, &links, |_, _, _| {})
}

/// Verifies a schedule for links of a model. Visits the rank and the position of every action, in an order in which the
/// ranks can run the actions. The visit of a send has its wait, if the links make it wait.
pub(crate) fn visit(
    schedule: &Schedule,
    dependencies: &Dependencies,
    links: &Links<'_>,
    visitor: impl FnMut(RankIndex, usize, Option<Need>),
) -> Result<(), VerifyError> {
    check_counts(schedule, dependencies)?;
    let table = Table::build(schedule, dependencies)?;
    table.check_backwards()?;
    table.check_edges()?;
    if schedule.mode == ScheduleMode::Training && schedule.form == Form::Lowered {
        table.check_updates()?;
        table.check_ties()?;
        if dependencies.has_replicas() {
            table.check_replicas()?;
        }
        if dependencies.has_global_norm() {
            table.check_norms()?;
        }
    }
    // A deadlock on links of every model is reported first.
    if links.model == LinkModel::Queue {
        let unbounded = Links {
            model: LinkModel::Unbounded,
            ..*links
        };
        symbolic::run(&Waits::new(&table, &unbounded)?, |_, _, _| {})?;
    }
    symbolic::run(&Waits::new(&table, links)?, visitor)
}

/// Checks everything except the lists.
fn check_counts(schedule: &Schedule, dependencies: &Dependencies) -> Result<(), VerifyError> {
    let (stages, micro_batches) = (schedule.stages, schedule.micro_batches);
    // A replica without micro-batches takes part in the sums.
    let may_be_idle = dependencies.has_replicas()
        && schedule.form == Form::Lowered
        && schedule.mode == ScheduleMode::Training;
    if stages == 0 || (micro_batches == 0 && !may_be_idle) {
        return Err(VerifyError::Empty {
            stages,
            micro_batches,
        });
    }
    let (expected, found) = (stages, schedule.stage_to_rank.len());
    if expected != found {
        return Err(VerifyError::StageMap { expected, found });
    }
    let world_size = schedule.world_size();
    let mut ranks = schedule.stage_to_rank.iter().enumerate();
    if let Some((stage, &rank)) = ranks.find(|(_, rank)| rank.index() >= world_size) {
        return Err(VerifyError::NoSuchRank {
            stage: StageIndex::new(stage),
            rank,
            world_size,
        });
    }
    let found = dependencies.stages();
    if expected != found {
        return Err(VerifyError::Dependencies { expected, found });
    }
    let joins = |a: StageIndex, b: StageIndex| a != b && a.index().max(b.index()) < stages;
    for &edge in dependencies.edges() {
        if !joins(edge.from.stage, edge.to.stage) {
            return Err(VerifyError::Edge { edge, stages });
        }
    }
    for &tie in dependencies.ties() {
        if !joins(tie.owner, tie.copy) {
            return Err(VerifyError::Tie { tie, stages });
        }
    }
    Ok(())
}

/// Checks that actions exist, and their order on each rank.
impl Table<'_> {
    /// Checks that every stage has a forward and, in training, a whole or split backward after it per
    /// micro-batch, and sums its gradients and updates its states in micro-batch order.
    fn check_backwards(&self) -> Result<(), VerifyError> {
        let schedule = self.schedule;
        for stage in self.all_stages() {
            let has_state = self.dependencies.states().contains(&stage);
            let (mut last, mut last_forward) = (None, None);
            for micro_batch in (0..schedule.micro_batches).map(MicroBatchIndex::new) {
                let task = Task::new(stage, Compute::Forward, micro_batch);
                let forward = self.require(Action::Compute(task))?;
                if let Some(last) = last_forward.replace(forward).filter(|_| has_state) {
                    self.order(stage, [last, forward], rules::STATE_ORDER)?;
                }
                if schedule.mode == ScheduleMode::ForwardOnly {
                    continue;
                }
                let end = self.backward(task, forward)?;
                if let Some(last) = last.replace(end) {
                    self.order(stage, [last, end], rules::GRADIENT_ORDER)?;
                }
            }
        }
        Ok(())
    }

    /// Checks the backward of one micro-batch and returns the position at which it ends.
    fn backward(&self, task: Task, forward: usize) -> Result<usize, VerifyError> {
        let stage = task.stage;
        let program = |compute| Action::Compute(Task { compute, ..task });
        let require = |compute| self.require(program(compute));
        let find = |compute| self.position(&program(compute));
        let part = find(Compute::InputGradient).or(find(Compute::WeightGradient));
        let Some(part) = part else {
            let whole = require(Compute::Backward)?;
            self.order(stage, [forward, whole], rules::BACKWARD_AFTER_FORWARD)?;
            return Ok(whole);
        };
        if let Some(whole) = find(Compute::Backward) {
            let rank = self.rank(stage);
            let at = self.schedule.place(rank, part);
            let whole = Box::new(self.schedule.place(rank, whole));
            return Err(VerifyError::TwoBackwards { at, whole });
        }
        let input = require(Compute::InputGradient)?;
        let weight = require(Compute::WeightGradient)?;
        self.order(stage, [forward, input], rules::BACKWARD_AFTER_FORWARD)?;
        self.order(stage, [input, weight], rules::WEIGHT_AFTER_INPUT)?;
        Ok(weight)
    }

    /// Checks that every edge between two ranks has its messages, and every edge within a rank its order.
    fn check_edges(&self) -> Result<(), VerifyError> {
        let schedule = self.schedule;
        let edges = self.dependencies.edges().iter().copied();
        for edge in edges.filter(|edge| schedule.has_edge(*edge)) {
            let (from, to) = (edge.from.stage, edge.to.stage);
            let is_sent = schedule.are_apart(from, to);
            for micro_batch in (0..schedule.micro_batches).map(MicroBatchIndex::new) {
                // Both exist: `check_backwards` has checked every program that can be an endpoint.
                let ends = [edge.from, edge.to].map(|end| self.end(end, micro_batch));
                let [Some(producer), Some(consumer)] = ends else {
                    continue;
                };
                if !is_sent {
                    self.order(from, [producer, consumer], rules::CONSUMER_AFTER_PRODUCER)?;
                } else if schedule.form == Form::Lowered {
                    let (send, receive) = self.pair(Message::Values { edge, micro_batch })?;
                    self.order(from, [producer, send], rules::SEND_AFTER_COMPUTE)?;
                    self.order(to, [receive, consumer], rules::COMPUTE_AFTER_RECEIVE)?;
                    // The end of the backward frees the outputs of its forward.
                    if edge.from.compute == Compute::Forward
                        && let Some(end) = self.end_of_backward(from, micro_batch)
                    {
                        self.order(from, [send, end], rules::SEND_BEFORE_FREE)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks that every rank has the norms of all stages before its first update. The number of messages is stages times
    /// ranks.
    fn check_norms(&self) -> Result<(), VerifyError> {
        for own in self.stages.values() {
            let to = own[0];
            let mut update = self.require(Action::Update { stage: to })?;
            for &stage in own {
                update = update.min(self.require(Action::Update { stage })?);
            }
            for from in self.all_stages() {
                let reduce = self.require(Action::Reduce { stage: from })?;
                if !self.schedule.are_apart(from, to) {
                    self.order(to, [reduce, update], rules::UPDATE_AFTER_NORMS)?;
                    continue;
                }
                let (send, receive) = self.pair(Message::Norm { from, to })?;
                self.order(from, [reduce, send], rules::NORM_AFTER_REDUCE)?;
                self.order(to, [receive, update], rules::UPDATE_AFTER_NORMS)?;
            }
        }
        Ok(())
    }

    /// Checks that every stage has its reduce and update after its last backward.
    fn check_updates(&self) -> Result<(), VerifyError> {
        for stage in self.all_stages() {
            let reduce = self.require(Action::Reduce { stage })?;
            let update = self.require(Action::Update { stage })?;
            if let Some(last) = self.last_backward(stage) {
                self.order(stage, [last, update], rules::UPDATE_AFTER_BACKWARD)?;
                self.order(stage, [last, reduce], rules::REDUCE_AFTER_BACKWARD)?;
            }
            self.order(stage, [reduce, update], rules::UPDATE_AFTER_REDUCE)?;
        }
        Ok(())
    }

    /// Checks that no rank waits for other replicas, whose lists may differ, before it has sent everything that they may wait
    /// for.
    fn check_replicas(&self) -> Result<(), VerifyError> {
        let schedule = self.schedule;
        for (rank, stages) in &self.stages {
            let of = |action: fn(StageIndex) -> Action| {
                let all = stages.iter().map(|stage| self.require(action(*stage)));
                all.collect::<Result<Vec<usize>, _>>()
            };
            let reduces = of(|stage| Action::Reduce { stage })?;
            let sums = of(|stage| Action::Sum { stage })?;
            let updates = of(|stage| Action::Update { stage })?;
            let gathers = of(|stage| Action::Gather { stage })?;
            let (mut values, mut norms, mut ties) = (Vec::new(), Vec::new(), Vec::new());
            for (position, action) in schedule.actions(*rank).iter().enumerate() {
                match action {
                    Action::Send(Message::Values { .. }) => values.push(position),
                    Action::Send(Message::Norm { .. }) | Action::Receive(Message::Norm { .. }) => {
                        norms.push(position);
                    }
                    Action::Receive(Message::Tie(_)) => ties.push(position),
                    _ => {}
                }
            }
            let before = |first: &[usize], second: &[usize], rule| {
                let ends = first.iter().max().zip(second.iter().min());
                let ends = ends.map(|(first, second)| [*first, *second]);
                ends.map_or(Ok(()), |ends| self.order(stages[0], ends, rule))
            };
            before(&reduces, &sums, rules::SUM_AFTER_REDUCES)?;
            before(&values, &sums, rules::SUM_AFTER_REDUCES)?;
            before(&sums, &norms, rules::NORMS_AFTER_SUMS)?;
            for (sum, update) in sums.iter().zip(&updates) {
                self.order(stages[0], [*sum, *update], rules::UPDATE_AFTER_SUM)?;
            }
            before(&updates, &gathers, rules::GATHER_AFTER_UPDATES)?;
            before(&updates, &ties, rules::GATHER_AFTER_UPDATES)?;
        }
        for tie in self.dependencies.ties() {
            if schedule.are_apart(tie.owner, tie.copy) {
                let gather = self.require(Action::Gather { stage: tie.owner })?;
                let send = self.require(Action::Send(Message::Tie(*tie)))?;
                self.order(tie.owner, [gather, send], rules::SEND_AFTER_GATHER)?;
            }
        }
        Ok(())
    }

    /// Checks that every tie sends new values to a stage after its last use of the old ones.
    fn check_ties(&self) -> Result<(), VerifyError> {
        for &tie in self.dependencies.ties() {
            let Tie { owner, copy } = tie;
            let update = self.require(Action::Update { stage: owner })?;
            if self.schedule.are_apart(owner, copy) {
                let (send, receive) = self.pair(Message::Tie(tie))?;
                self.order(owner, [update, send], rules::SEND_AFTER_UPDATE)?;
                let own = self.require(Action::Update { stage: copy })?;
                self.order(copy, [own, receive], rules::RECEIVE_AFTER_UPDATE)?;
            } else if let Some(last) = self.last_backward(copy) {
                self.order(owner, [last, update], rules::UPDATE_AFTER_COPY)?;
            }
        }
        Ok(())
    }

    fn all_stages(&self) -> impl Iterator<Item = StageIndex> + use<> {
        (0..self.schedule.stages).map(StageIndex::new)
    }

    /// Returns the position at which the last backward of a stage ends: the backward of the last micro-batch, because
    /// gradients are summed in order.
    fn last_backward(&self, stage: StageIndex) -> Option<usize> {
        let last = MicroBatchIndex::new(self.schedule.micro_batches.checked_sub(1)?);
        self.end_of_backward(stage, last)
    }

    /// Returns the position at which the backward of a micro-batch ends.
    fn end_of_backward(&self, stage: StageIndex, micro_batch: MicroBatchIndex) -> Option<usize> {
        self.end(Endpoint::new(stage, Compute::WeightGradient), micro_batch)
    }

    /// Returns the position of an action, which has to exist.
    fn require(&self, action: Action) -> Result<usize, VerifyError> {
        let rank = self.rank(action.stage());
        let position = self.position(&action);
        position.ok_or(VerifyError::Missing { rank, action })
    }

    /// Returns the positions of a message's send and receive.
    fn pair(&self, message: Message) -> Result<(usize, usize), VerifyError> {
        let (send, receive) = (Action::Send(message), Action::Receive(message));
        let (found, position, missing) = match (self.position(&send), self.position(&receive)) {
            (Some(send), Some(receive)) => return Ok((send, receive)),
            // Reports that the send is missing.
            (None, None) => return self.require(send).map(|at| (at, at)),
            (Some(position), None) => (send, position, receive),
            (None, Some(position)) => (receive, position, send),
        };
        Err(VerifyError::Unpaired {
            at: self.schedule.place(self.rank(found.stage()), position),
            rank: self.rank(missing.stage()),
            missing: Box::new(missing),
        })
    }

    /// Checks that the first of two actions of a stage's rank is before the second.
    fn order(&self, stage: StageIndex, ends: [usize; 2], rule: Rule) -> Result<(), VerifyError> {
        let [first, second] = ends;
        if first < second {
            return Ok(());
        }
        let rank = self.rank(stage);
        let early = self.schedule.place(rank, second);
        let late = Box::new(self.schedule.place(rank, first));
        Err(VerifyError::OutOfOrder { early, late, rule })
    }
}
